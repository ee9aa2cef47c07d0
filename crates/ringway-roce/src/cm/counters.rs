//! What a manager counts besides its connections.

/// Messages that changed nothing, or not what they were to, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// They were none: of another length, class, version, queue key or kind.
    pub malformed: u64,
    /// For no connection of this side's with their sender. A DREQ is answered all the same.
    pub stray: u64,
    /// Not what their connection waits for, such as answers that have come already.
    pub unexpected: u64,
    /// REQs that had come before.
    pub repeated: u64,
    /// REQs for services that nobody listens at.
    pub unlistened: u64,
    /// REQs that were not heard as too many others wait.
    pub overflow: u64,
    /// REQs and MRAs that were taken, but for the time that they ask for: 34 s is the longest here.
    pub shortened: u64,
}

impl Counters {
    /// Tells each count with its name.
    pub fn tell(&self, tell: &mut dyn FnMut(&'static str, u64)) {
        tell("cm_malformed", self.malformed);
        tell("cm_stray", self.stray);
        tell("cm_unexpected", self.unexpected);
        tell("cm_repeated_req", self.repeated);
        tell("cm_unlistened", self.unlistened);
        tell("cm_overflow", self.overflow);
        tell("cm_shortened", self.shortened);
    }
}

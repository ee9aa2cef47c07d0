//! DCQCN: senders slow down before switches lose packets.
//!
//! A switch whose queue grows marks packets "congestion experienced". Their receiver, the *notification point*, sends
//! a congestion notification packet (CNP) to the sender, at most one in an interval. The sender, the *reaction
//! point*, cuts its rate by α/2, where α estimates how much of its traffic is marked, and climbs back: five times
//! half of the way (fast recovery), then beyond by steps. From Zhu et al., "Congestion Control for Large-Scale RDMA
//! Deployments", SIGCOMM 2015, sections 3 and 5, whose constants are [`Parameters::new`]'s.

use std::time::{Duration, Instant};

/// The constants of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// The sender's line rate in bytes per second, from which and up to which it goes.
    pub line_rate: f64,
    /// The least time between two CNPs to one sender.
    pub cnp_interval: Duration,
    /// α shrinks once in this time without a CNP.
    pub alpha_interval: Duration,
    /// How much a CNP, or its absence, changes α.
    pub gain: f64,
    /// The rate climbs once in this time.
    pub climb_interval: Duration,
    /// And once in so many bytes.
    pub climb_bytes: u64,
    /// How many climbs are fast recovery.
    pub recovery_steps: u32,
    /// The additive step in bytes per second.
    pub step: f64,
    /// The step in bytes per second once both clock and bytes are beyond recovery; it grows with each climb.
    pub hyper_step: f64,
    /// The lowest rate in bytes per second.
    pub lowest_rate: f64,
}

impl Parameters {
    /// The published constants for a line rate in bytes per second.
    pub const fn new(line_rate: f64) -> Self {
        Self {
            line_rate,
            cnp_interval: Duration::from_micros(50),
            alpha_interval: Duration::from_micros(55),
            gain: 1.0 / 256.0,
            climb_interval: Duration::from_micros(55),
            climb_bytes: 10_000_000,
            recovery_steps: 5,
            // 40 Mb/s, 400 Mb/s and 1 Mb/s.
            step: 5e6,
            hyper_step: 50e6,
            lowest_rate: 125e3,
        }
    }
}

/// The receiver of marked packets.
#[derive(Clone, Copy, Debug)]
pub struct NotificationPoint {
    interval: Duration,
    last: Option<Instant>,
}

impl NotificationPoint {
    /// One that has notified nobody yet.
    pub const fn new(parameters: &Parameters) -> Self {
        Self {
            interval: parameters.cnp_interval,
            last: None,
        }
    }

    /// A marked packet has come. Whether to send a CNP.
    pub fn marked(&mut self, now: Instant) -> bool {
        let due = self.last.is_none_or(|last| now >= last + self.interval);
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// The sender: how fast it may send.
#[derive(Clone, Copy, Debug)]
pub struct ReactionPoint {
    parameters: Parameters,
    /// None: at line rate, nothing to wait for.
    limit: Option<Limit>,
    alpha: f64,
    /// When α last changed, or was looked at.
    alpha_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    rate: f64,
    target: f64,
    /// When the next packet may go.
    next_send: Instant,
    /// The climbs by the clock since the last CNP, and when the last of them was.
    clock_climbs: u32,
    climbed: Instant,
    /// The climbs by bytes, and the bytes since the last of them.
    byte_climbs: u32,
    bytes: u64,
}

impl ReactionPoint {
    /// At line rate.
    pub const fn new(parameters: Parameters) -> Self {
        Self {
            parameters,
            limit: None,
            alpha: 1.0,
            alpha_since: None,
        }
    }

    /// The rate in bytes per second.
    pub fn rate(&self) -> f64 {
        self.limit
            .map_or(self.parameters.line_rate, |limit| limit.rate)
    }

    /// A CNP has come.
    pub fn notified(&mut self, now: Instant) {
        self.advance(now);
        let rate = self.rate();
        let lowest = self.parameters.lowest_rate.min(self.parameters.line_rate);
        self.limit = Some(Limit {
            rate: (rate * (1.0 - self.alpha / 2.0)).max(lowest),
            target: rate,
            next_send: self.limit.map_or(now, |limit| limit.next_send),
            clock_climbs: 0,
            climbed: now,
            byte_climbs: 0,
            bytes: 0,
        });
        self.alpha = (1.0 - self.parameters.gain) * self.alpha + self.parameters.gain;
        self.alpha_since = Some(now);
    }

    /// When the next packet may be sent; None: now.
    pub fn next_send(&mut self, now: Instant) -> Option<Instant> {
        self.advance(now);
        self.limit
            .map(|limit| limit.next_send)
            .filter(|next| *next > now)
    }

    /// A packet has been sent.
    pub fn sent(&mut self, now: Instant, bytes: usize) {
        let Some(limit) = &mut self.limit else {
            return;
        };
        let takes = Duration::from_secs_f64(bytes as f64 / limit.rate);
        limit.next_send = limit.next_send.max(now) + takes;
        limit.bytes += bytes as u64;
        if limit.bytes >= self.parameters.climb_bytes {
            limit.bytes -= self.parameters.climb_bytes;
            limit.byte_climbs += 1;
            self.climb();
        }
    }

    /// Does what the clocks have brought about up to now.
    fn advance(&mut self, now: Instant) {
        if let Some(since) = self.alpha_since {
            let times = times(
                now.saturating_duration_since(since),
                self.parameters.alpha_interval,
            );
            self.alpha *= (1.0 - self.parameters.gain).powi(times as i32);
            self.alpha_since = Some(since + self.parameters.alpha_interval * times);
        }
        while let Some(limit) = &mut self.limit {
            let next = limit.climbed + self.parameters.climb_interval;
            if next > now {
                break;
            }
            limit.climbed = next;
            limit.clock_climbs += 1;
            self.climb();
        }
    }

    fn climb(&mut self) {
        let Some(limit) = &mut self.limit else {
            return;
        };
        let parameters = &self.parameters;
        let (slow, fast) = if limit.clock_climbs < limit.byte_climbs {
            (limit.clock_climbs, limit.byte_climbs)
        } else {
            (limit.byte_climbs, limit.clock_climbs)
        };
        if slow > parameters.recovery_steps {
            limit.target += f64::from(slow - parameters.recovery_steps) * parameters.hyper_step;
        } else if fast > parameters.recovery_steps {
            limit.target += parameters.step;
        }
        limit.target = limit.target.min(parameters.line_rate);
        limit.rate = f64::midpoint(limit.rate, limit.target);
        // Half of the way never arrives.
        if limit.rate > parameters.line_rate * 0.999 {
            self.limit = None;
        }
    }
}

/// How often an interval fits into a time, up to i32's end, beyond which nothing changes.
fn times(time: Duration, interval: Duration) -> u32 {
    let times = time.as_nanos() / interval.as_nanos().max(1);
    times.min(i32::MAX as u128) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 Gb/s.
    const LINE: f64 = 12.5e9;

    fn near(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{found} for {expected}"
        );
    }

    #[test]
    fn one_notification_in_an_interval() {
        let start = Instant::now();
        let mut point = NotificationPoint::new(&Parameters::new(LINE));
        let at = |micros| start + Duration::from_micros(micros);
        let notified = [0, 1, 49, 50, 99, 100].map(|micros| point.marked(at(micros)));
        assert_eq!(notified, [true, false, false, true, false, true]);
    }

    #[test]
    fn without_notifications_nothing_waits() {
        let now = Instant::now();
        let mut point = ReactionPoint::new(Parameters::new(LINE));
        for _ in 0..1000 {
            assert_eq!(point.next_send(now), None);
            point.sent(now, 4096);
        }
    }

    #[test]
    fn the_first_notification_halves_the_rate_and_fast_recovery_restores_it() {
        let start = Instant::now();
        let parameters = Parameters::new(LINE);
        let mut point = ReactionPoint::new(parameters);
        point.notified(start);
        near(point.rate(), LINE / 2.0);
        let mut rate = LINE / 2.0;
        for step in 1..=5 {
            point.next_send(start + parameters.climb_interval * step);
            rate = f64::midpoint(rate, LINE);
            near(point.rate(), rate);
        }
        // Half of the way ten times: line rate again.
        point.next_send(start + parameters.climb_interval * 10);
        near(point.rate(), LINE);
    }

    #[test]
    fn notifications_in_a_row_cut_by_alpha_and_calm_forgets_it() {
        let start = Instant::now();
        let parameters = Parameters::new(LINE);
        let mut point = ReactionPoint::new(parameters);
        point.notified(start);
        point.notified(start);
        near(point.rate(), LINE / 4.0);
        near(point.alpha, 1.0);
        let calm = start + parameters.alpha_interval * 100;
        point.next_send(calm);
        near(point.alpha, (255.0f64 / 256.0).powi(100));
        let rate = point.rate();
        let alpha = point.alpha;
        point.notified(calm);
        near(point.rate(), rate * (1.0 - alpha / 2.0));
    }

    #[test]
    fn after_recovery_the_target_grows_by_steps() {
        let start = Instant::now();
        let parameters = Parameters::new(LINE);
        let mut point = ReactionPoint::new(parameters);
        for _ in 0..3 {
            point.notified(start);
        }
        let target = LINE / 4.0;
        let target_at = |point: &mut ReactionPoint, steps| {
            point.next_send(start + parameters.climb_interval * steps);
            point.limit.unwrap().target
        };
        near(target_at(&mut point, 5), target);
        near(target_at(&mut point, 6), target + 5e6);
        near(target_at(&mut point, 8), target + 15e6);
        // Six times ten megabytes: now both are beyond recovery.
        for _ in 0..5 {
            point.sent(start, 10_000_000);
            // Each of them climbs additively, for the clock is ahead.
        }
        near(point.limit.unwrap().target, target + 40e6);
        point.sent(start, 10_000_000);
        near(point.limit.unwrap().target, target + 90e6);
    }

    #[test]
    fn packets_are_spaced_by_the_rate() {
        let start = Instant::now();
        let mut point = ReactionPoint::new(Parameters::new(LINE));
        point.notified(start);
        assert_eq!(point.next_send(start), None);
        point.sent(start, 6250);
        // 6250 bytes at 6.25 GB/s.
        assert_eq!(
            point.next_send(start),
            Some(start + Duration::from_micros(1))
        );
        assert_eq!(point.next_send(start + Duration::from_micros(1)), None);
    }

    #[test]
    fn the_rate_has_a_floor_and_a_long_calm_is_quick_to_compute() {
        let start = Instant::now();
        let mut point = ReactionPoint::new(Parameters::new(LINE));
        for _ in 0..1000 {
            point.notified(start);
        }
        near(point.rate(), 125e3);
        point.next_send(start + Duration::from_secs(1 << 30));
        near(point.rate(), LINE);
        assert!(point.alpha < 1e-300);
    }
}

//! Shared memory without a name: it is gone when the last process that has it is gone, however that ends.

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{Advice, MapFlags, ProtFlags},
};

use crate::Memory;

/// Shared memory behind a file descriptor (memfd), mapped into this process. Pages exist once touched.
///
/// The size is sealed, so that no process can make another's accesses fault by truncating it.
///
/// When the segment is dropped its pages leave this process; its addresses stay reserved and inaccessible, so
/// that a [`Memory`] handle used too late faults and never touches memory of others.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    memory: Memory,
}

/// Shared memory could not be made or joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// A file descriptor that is no sealed memory of the expected kind.
    #[error("the file descriptor is not shared memory of Ringway's: {0}")]
    Foreign(&'static str),
    /// The operating system refused.
    #[error("{call} of {bytes} bytes of shared memory failed: {source}; {remedy}")]
    System {
        /// The system call.
        call: &'static str,
        /// How many bytes were asked for.
        bytes: usize,
        /// What it said.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
}

fn failed(call: &'static str, bytes: usize, errno: rustix::io::Errno) -> SegmentError {
    use rustix::io::Errno;
    let remedy = match errno {
        Errno::NOMEM | Errno::FBIG => {
            "raise the limit on virtual memory (ulimit -v) or make RINGWAY_ARENA_SIZE smaller"
        }
        Errno::MFILE | Errno::NFILE => "raise the limit on open files (ulimit -n)",
        Errno::NOSYS | Errno::PERM => {
            "the kernel or a sandbox forbids it: allow memfd_create (Linux 3.17 or later), or use RINGWAY_TRANSPORT=tcp"
        }
        _ => "use RINGWAY_TRANSPORT=tcp to go without shared memory",
    };
    SegmentError::System {
        call,
        bytes,
        source: errno.into(),
        remedy,
    }
}

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

impl Segment {
    /// New memory of `bytes` zeros. `name` shows up in /proc/PID/maps.
    pub fn create(name: &str, bytes: usize) -> Result<Self, SegmentError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd =
            rustix::fs::memfd_create(name, flags).map_err(|e| failed("memfd_create", bytes, e))?;
        rustix::fs::ftruncate(&fd, bytes as u64).map_err(|e| failed("ftruncate", bytes, e))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| failed("sealing", bytes, e))?;
        Self::map(fd, bytes)
    }

    /// The memory behind a file descriptor that another process made with [`Segment::create`].
    pub fn join(fd: OwnedFd) -> Result<Self, SegmentError> {
        let seals = rustix::fs::fcntl_get_seals(&fd)
            .map_err(|_| SegmentError::Foreign("it is no memfd"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(SegmentError::Foreign("its size is not sealed"));
        }
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("fstat", 0, e))?;
        let bytes = usize::try_from(stat.st_size)
            .map_err(|_| SegmentError::Foreign("its size does not fit the address space"))?;
        Self::map(fd, bytes)
    }

    fn map(fd: OwnedFd, bytes: usize) -> Result<Self, SegmentError> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let ptr = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &fd,
                0,
            )
        }
        .map_err(|e| failed("mmap", bytes, e))?;
        // SAFETY: the range was just mapped readable and writable, and its size is sealed, so that no access
        // faults. It never becomes other memory: dropping the segment leaves the addresses reserved.
        let memory = unsafe { Memory::new(ptr.cast(), bytes) };
        let segment = Self { fd, memory };
        // Advice only: without it the memory works all the same. Sparse terabytes have no place in core dumps.
        let _ = segment.advise(0..bytes, Advice::LinuxDontDump);
        Ok(segment)
    }

    /// All of it.
    pub const fn memory(&self) -> Memory {
        self.memory
    }

    /// The file descriptor, to be handed to other processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Asks for huge pages behind `range`, where the system allows that for shared memory
    /// (/sys/kernel/mm/transparent_hugepage/shmem_enabled). Returns whether it took the advice.
    ///
    /// # Panics
    /// If the range is not within the segment.
    pub fn advise_huge(&self, range: Range<usize>) -> bool {
        self.advise(range, Advice::LinuxHugepage).is_ok()
    }

    /// Gives the pages that lie wholly within `range` back to the system, in every process: they read as
    /// zeros afterwards.
    ///
    /// # Panics
    /// If the range is not within the segment.
    pub fn discard(&self, range: Range<usize>) -> io::Result<()> {
        let page = rustix::param::page_size();
        let range = range.start.next_multiple_of(page)..range.end / page * page;
        if range.is_empty() {
            return Ok(());
        }
        Ok(self.advise(range, Advice::LinuxRemove)?)
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> rustix::io::Result<()> {
        let memory = self.memory.slice(range);
        // SAFETY: the range is within this mapping. The advices used here only change which pages back it;
        // all access is through raw pointers and atomics, for which pages turning to zeros is like a write.
        unsafe { rustix::mm::madvise(memory.as_ptr().cast(), memory.len(), advice) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: replaces exactly this segment's own mapping by an inaccessible one, which stays for ever: the
        // addresses are never given to anything else, so late uses of `Memory` handles fault.
        let replaced = unsafe {
            rustix::mm::mmap_anonymous(
                self.memory.as_ptr().cast(),
                self.memory.len(),
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        };
        // Where the kernel has no room for the entry, the mapping stays as it is: more memory, still sound.
        let _ = replaced;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let one = Segment::create("test", 1 << 20).unwrap();
        let two = Segment::join(one.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(two.memory().len(), 1 << 20);
        one.memory().slice(5000..5003).write(&[1, 2, 3]);
        let mut bytes = [0; 3];
        two.memory().slice(5000..5003).read(&mut bytes);
        assert_eq!(bytes, [1, 2, 3]);
    }

    #[test]
    fn memory_is_sparse_and_discarded_pages_are_zeros() {
        let segment = Segment::create("test", 1 << 40).unwrap();
        let far = segment.memory().slice(1 << 39..(1 << 39) + 8192);
        far.write(&[7; 8192]);
        segment.discard(1 << 39..(1 << 39) + 8192).unwrap();
        let mut byte = [1];
        far.read(&mut byte);
        assert_eq!(byte, [0]);
    }

    #[test]
    fn other_files_are_refused() {
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(matches!(Segment::join(file), Err(SegmentError::Foreign(_))));
        let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        let error = Segment::join(unsealed).unwrap_err().to_string();
        assert!(error.contains("not sealed"), "{error}");
    }

    #[test]
    fn the_size_cannot_be_changed() {
        let segment = Segment::create("test", 8192).unwrap();
        assert!(rustix::fs::ftruncate(segment.fd(), 0).is_err());
        assert!(rustix::fs::ftruncate(segment.fd(), 1 << 20).is_err());
    }
}

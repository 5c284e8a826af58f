//! How much memory messages that were read back from the device may take when nobody says.
//!
//! Groups that catch up on the same backlog should read the device once. Brokers that read through the
//! page cache get that from the kernel, in whatever memory is free; the log goes past it, so a share of
//! the machine is set aside. It is taken only as messages are read back again and again.

use std::{fs, path::Path};

/// The share of the memory that the process may use: one part in this many.
const PARTS: u64 = 8;
const MIN: u64 = 64 << 20;
const MAX: u64 = 4 << 30;

/// Bytes for what all shards read back: an eighth of the machine's memory, or of what the control
/// group may use if that is less; 64 MiB to 4 GiB.
pub(crate) fn read_bytes() -> usize {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        group_limit(Path::new("/sys/fs/cgroup"), Path::new(path))
    });
    let usable = machine.into_iter().chain(group).min().unwrap_or(0);
    usize::try_from((usable / PARTS).clamp(MIN, MAX)).unwrap_or(usize::MAX)
}

/// The `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest `memory.max` of a control group and those above it, in bytes.
fn group_limit(root: &Path, group: &Path) -> Option<u64> {
    let limit_of = |folder: &Path| {
        let text = fs::read_to_string(root.join(folder).join("memory.max")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    group.ancestors().filter_map(limit_of).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_in_bytes() {
        assert_eq!(total("Foo: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(total("MemTotal: many kB\n"), None);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let limit = || group_limit(root.path(), Path::new("a/b"));
        assert_eq!(limit(), None);
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        assert_eq!(limit(), Some(1000));
        fs::write(inner.join("memory.max"), "2000\n").unwrap();
        assert_eq!(limit(), Some(1000));
    }

    #[test]
    fn this_machine_gets_a_sane_amount() {
        let bytes = u64::try_from(read_bytes()).unwrap();
        assert!((MIN..=MAX).contains(&bytes), "{bytes}");
    }
}

//! What the system says about the broker's process and the disks.
//!
//! Parsers are functions of text; the readers around them only open files.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Counters of all real block devices, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockCounters {
    /// Writes completed.
    pub(crate) writes: u64,
    /// Sectors of 512 bytes written.
    pub(crate) sectors_written: u64,
    /// Flushes completed.
    pub(crate) flushes: u64,
}

/// Reads the counters of `/sys/block`.
///
/// # Errors
///
/// When `/sys` is not there.
pub(crate) fn block_counters() -> io::Result<BlockCounters> {
    let mut total = BlockCounters::default();
    for device in fs::read_dir("/sys/block")? {
        let device = device?;
        let name = device.file_name();
        let name = name.to_string_lossy();
        // What lies on a loop or memory device would be counted a second time, or is no disk.
        if ["loop", "ram", "zram", "dm-", "md"].iter().any(|kind| name.starts_with(kind)) {
            continue;
        }
        let text = fs::read_to_string(device.path().join("stat"))?;
        if let Some(counters) = parse_block(&text) {
            total.writes += counters.writes;
            total.sectors_written += counters.sectors_written;
            total.flushes += counters.flushes;
        }
    }
    Ok(total)
}

/// Source: the kernel's `Documentation/block/stat.rst`; fields 5, 7 and 16, counted from 1.
fn parse_block(text: &str) -> Option<BlockCounters> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(BlockCounters {
        writes: *fields.get(4)?,
        sectors_written: *fields.get(6)?,
        flushes: fields.get(15).copied().unwrap_or_default(),
    })
}

/// User and system time of a process, its ended and kernel worker threads included.
///
/// # Errors
///
/// When the process has ended.
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = parse_cpu_ticks(&text).ok_or(io::ErrorKind::InvalidData)?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1000 / per_second))
}

/// Fields 14 and 15 of `/proc/<pid>/stat`; the command name before them may hold blanks.
fn parse_cpu_ticks(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Anonymous resident memory of a process in KiB: mapped files are not counted.
///
/// # Errors
///
/// When the process has ended.
pub(crate) fn rss_anon_kib(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    parse_rss_anon(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_rss_anon(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The process that listens on a local TCP port.
///
/// # Errors
///
/// When `/proc` cannot be read. Nobody listening is `None`.
pub(crate) fn listener_pid(port: u16) -> io::Result<Option<u32>> {
    let mut sockets = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        if let Ok(text) = fs::read_to_string(table) {
            sockets.extend(parse_listeners(&text, port));
        }
    }
    for process in fs::read_dir("/proc")? {
        let process = process?;
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if holds_any(&process.path().join("fd"), &sockets) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// Socket inodes in state LISTEN (0A) on `port`.
fn parse_listeners(table: &str, port: u16) -> Vec<String> {
    let wanted = format!(":{port:04X}");
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1)?;
            let state = fields.nth(1)?;
            let inode = fields.nth(5)?;
            (local.ends_with(&wanted) && state == "0A").then(|| format!("socket:[{inode}]"))
        })
        .collect()
}

fn holds_any(fd_folder: &Path, sockets: &[String]) -> bool {
    // Another user's process, or one that has just ended, cannot be read and is not the broker.
    let Ok(fds) = fs::read_dir(fd_folder) else { return false };
    fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| {
        target.to_str().is_some_and(|target| sockets.iter().any(|socket| socket == target))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flush_counter_is_field_sixteen() {
        let text = " 28711 5813 3718570 11438 5832 12136 1006632 3010 0 5476 14702 3485 6 145344 \
                    241 258 12\n";
        let want = BlockCounters { writes: 5832, sectors_written: 1_006_632, flushes: 258 };
        assert_eq!(parse_block(text), Some(want));
    }

    #[test]
    fn a_command_name_with_blanks_and_brackets_is_skipped() {
        let text = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 700 55 0 0 20 0 9 0 1 2 3";
        assert_eq!(parse_cpu_ticks(text), Some(755));
    }

    #[test]
    fn anonymous_memory_is_read_without_mapped_files() {
        let text = "Name:\tjava\nVmRSS:\t   99 kB\nRssAnon:\t  1234 kB\nRssFile:\t 5 kB\n";
        assert_eq!(parse_rss_anon(text), Some(1234));
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n\
            0: 0100007F:2A9F 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 777 1 0\n\
            1: 0100007F:2A9F 0100007F:9999 01 00000000:00000000 00:00000000 00000000 0 0 778 1 0\n\
            2: 0100007F:2AA0 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 779 1 0\n";
        assert_eq!(parse_listeners(table, 10911), ["socket:[777]"]);
    }

    #[test]
    fn the_own_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(listener_pid(port).unwrap(), Some(std::process::id()));
    }
}

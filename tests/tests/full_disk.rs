//! A full device: refused sends, no lost messages, and everything goes on when there is room.
//!
//! Runs on a file system of its own in an image file, which takes root's right to mount.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use ringmq_protocol::codes::response::SUCCESS;
use ringmq_tests::{
    client::Client,
    folder::Folder,
    messages::{create_topic, pull_all, send},
    server::{Ringmq, Settings},
    wait::poll,
};

const IMAGE_LEN: u64 = 192 << 20;
const FILLER_LEN: usize = 48 << 20;
const BODY_LEN: usize = 64 << 10;
const TOPIC: &str = "full";
const CAP_SYS_ADMIN: u64 = 1 << 21;

#[test]
fn a_full_device_refuses_sends_loses_nothing_and_recovers_with_room() {
    if !may_mount() {
        println!("not root, so no small file system can be mounted: nothing was tested");
        return;
    }
    let folder = Folder::new("full");
    let device = SmallDevice::mount(folder.path());
    let filler = device.path.join("filler");
    fs::write(&filler, vec![1; FILLER_LEN]).unwrap();
    let mut settings = Settings::new(&device.path.join("data"));
    settings.arguments = vec!["--shards".to_owned(), "1".to_owned()];
    settings.conf = vec![format!("segmentSize={}", 4 << 20)];
    let mut server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    assert_eq!(create_topic(&mut client, TOPIC, 1).unwrap().code, SUCCESS);

    let mut accepted = 0;
    let refused = loop {
        let reply = send_next(&mut client, accepted);
        if reply != SUCCESS {
            break reply;
        }
        accepted += 1;
        assert!(accepted * BODY_LEN < usize::try_from(IMAGE_LEN).unwrap(), "more than fits");
    };
    println!("{accepted} accepted, then code {refused}");
    assert!(accepted > 0);
    assert_eq!(stored(&mut client), accepted, "a refused send is not stored");
    assert!(server.runs());

    fs::remove_file(&filler).unwrap();
    poll(|| (send_next(&mut client, accepted) == SUCCESS).then_some(()))
        .expect("sends are accepted again when there is room");
    accepted += 1;
    assert_eq!(stored(&mut client), accepted);

    server.kill();
    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    assert_eq!(stored(&mut client), accepted);
    assert_eq!(send_next(&mut client, accepted), SUCCESS);
    assert!(server.stop());
}

/// The answer to one more message, whose key is its number.
fn send_next(client: &mut Client, number: usize) -> i32 {
    send(client, TOPIC, 0, &number.to_string(), &[b'x'; BODY_LEN]).unwrap().code
}

/// How many messages there are, which have to be the first ones sent, in order.
fn stored(client: &mut Client) -> usize {
    let messages = pull_all(client, TOPIC, 0).unwrap();
    for (number, message) in messages.iter().enumerate() {
        assert_eq!((message.key.as_str(), message.body.len()), (&*number.to_string(), BODY_LEN));
    }
    messages.len()
}

/// An ext4 in a file, mounted in a folder; unmounted when dropped.
struct SmallDevice {
    path: PathBuf,
}

impl SmallDevice {
    fn mount(folder: &Path) -> Self {
        let image = folder.join("image");
        fs::File::create(&image).unwrap().set_len(IMAGE_LEN).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image));
        let path = folder.join("mounted");
        fs::create_dir(&path).unwrap();
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path));
        Self { path }
    }
}

impl Drop for SmallDevice {
    fn drop(&mut self) {
        // The kernel lets go of a ring's files a moment after its process has ended.
        let unmount = || Command::new("umount").arg(&self.path).output();
        let gone = poll(|| unmount().is_ok_and(|done| done.status.success()).then_some(()));
        if gone.is_none() {
            let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
        }
    }
}

#[track_caller]
fn run(command: &mut Command) {
    let status = command.status();
    assert!(status.as_ref().is_ok_and(|s| s.success()), "{command:?}: {status:?}");
}

/// Whether this is root with root's rights; then mounting has to work.
fn may_mount() -> bool {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    is_root && u64::from_str_radix(rights, 16).unwrap() & CAP_SYS_ADMIN != 0
}

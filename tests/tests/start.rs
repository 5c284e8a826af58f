//! What keeps a server from starting, told in one line.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{net::TcpListener, process::Output};

use ringmq_protocol::codes::response::SUCCESS;
use ringmq_tests::{
    client::Client,
    folder::Folder,
    messages::send,
    server::{Form, Ringmq, Settings},
};

/// The refusal is one line on standard error that contains all of `words`, and the exit code says
/// so as well.
#[track_caller]
fn check_refusal(output: &Output, words: &[&str]) {
    assert!(!output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("ringmq: ")).collect();
    let [line] = lines.as_slice() else { panic!("not one line: {text}") };
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(line.contains(word), "no {word:?} in: {text}");
    }
}

#[test]
fn a_second_process_on_the_same_data_is_refused_and_the_first_goes_on() {
    let folder = Folder::new("second");
    let data = folder.path().join("data");
    let first = Ringmq::start(&Settings::new(&data));
    check_refusal(&Settings::new(&data).refused(), &[data.to_str().unwrap()]);
    let mut client = Client::connect(first.broker()).unwrap();
    assert_eq!(send(&mut client, "topic", 0, "key", b"body").unwrap().code, SUCCESS);
    assert!(first.stop());
    // The folder is free again with the process.
    assert!(Ringmq::start(&Settings::new(&data)).stop());
}

#[test]
fn each_kind_of_process_says_that_it_runs_and_ends_when_asked() {
    let folder = Folder::new("kinds");
    let settings = |name: &str| Settings::new(&folder.path().join(name));
    let namesrv = Ringmq::start(&Settings { form: Form::Namesrv, ..settings("namesrv") });
    let form = Form::Broker(namesrv.namesrv());
    let broker = Ringmq::start(&Settings { form, ..settings("broker") });
    let standalone = Ringmq::start(&settings("standalone"));
    for process in [standalone, broker, namesrv] {
        assert!(process.stop());
    }
}

#[test]
fn a_port_in_use_is_named() {
    let folder = Folder::new("port");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let mut settings = Settings::new(&folder.path().join("data"));
    settings.listen.clone_from(&address);
    check_refusal(&settings.refused(), &[&address]);
    let mut settings = Settings::new(&folder.path().join("data-2"));
    settings.namesrv_listen.clone_from(&address);
    check_refusal(&settings.refused(), &[&address]);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    // Not even root can make a folder here, whatever the permissions say.
    let data = "/proc/ringmq-data";
    check_refusal(&Settings::new(data.as_ref()).refused(), &[data]);
}

#[test]
fn a_file_in_place_of_the_folder_is_named() {
    let folder = Folder::new("file");
    let data = folder.path().join("data");
    std::fs::write(&data, "").unwrap();
    check_refusal(&Settings::new(&data).refused(), &[data.to_str().unwrap()]);
}

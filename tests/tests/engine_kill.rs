//! A program that embeds the engine is killed under load, on real files and a real ring.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::process::Command;

use ringmq_tests::folder::Folder;

/// More of them: `cargo run --release -p ringmq-tests --bin kill -- --folder DIR --kills 200`.
const KILLS: &str = "6";

#[test]
fn what_an_embedder_was_told_survives_kills_and_kills_soon_after() {
    let folder = Folder::new("engine-kill");
    let store = folder.path().join("store");
    let output = Command::new(env!("CARGO_BIN_EXE_kill"))
        .arg("--folder")
        .arg(&store)
        .args(["--kills", KILLS])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

//! The executables of this build.
//!
//! Cargo names executables to tests of their own package only, so this asks Cargo to build it, in
//! the target folder and profile of the running test; that takes a moment if it is up to date.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The path of an up-to-date `ringmq`.
///
/// # Panics
///
/// If it can't be built.
pub fn ringmq() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("ringmq"))
}

/// The path of an up-to-date `ringmq-admin`.
///
/// # Panics
///
/// If it can't be built.
pub fn ringmq_admin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("ringmq-admin"))
}

fn build(name: &str) -> PathBuf {
    let profile = profile_folder();
    let profile_name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        // The whole workspace, so that features are those of the tests' own build.
        .args(["build", "--quiet", "--workspace", "--bin", name, "--profile", profile_name])
        .arg("--target-dir")
        .arg(target_folder())
        .status()
        .expect("cargo runs, since it runs this test");
    assert!(status.success(), "{name} could not be built: {status}");
    profile.join(name)
}

/// The target folder that the running test was built in.
///
/// # Panics
///
/// If the test runs from anywhere else.
pub fn target_folder() -> PathBuf {
    profile_folder().parent().expect("a profile's folder lies in the target folder").to_owned()
}

/// `target/debug` or its like: the parent of `deps`, where tests are.
fn profile_folder() -> PathBuf {
    let test = env::current_exe().expect("the system knows the path of a running program");
    test.ancestors()
        .find(|folder| folder.ends_with("deps"))
        .and_then(Path::parent)
        .expect("cargo puts tests into `deps` of a profile's folder")
        .to_owned()
}

//! Folders that go with their test.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::binary;

/// An empty folder, on the disk that the build is on as a rule, removed when this is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder of its own for this call; `name` is for people who look.
    ///
    /// # Panics
    ///
    /// If the folder can't be made.
    pub fn new(name: &str) -> Self {
        Self::within(&binary::target_folder().join("test-data"), name)
    }

    /// As [`new`](Self::new), but where the system keeps shared memory.
    ///
    /// # Panics
    ///
    /// If the folder can't be made.
    pub fn in_memory(name: &str) -> Self {
        Self::within(Path::new("/dev/shm"), name)
    }

    fn within(parent: &Path, name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{name}-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("the folder can be written");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind does no harm, and a panic here would hide the test's own.
        let _ = fs::remove_dir_all(&self.0);
    }
}

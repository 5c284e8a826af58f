//! Small files that are replaced as a whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Replaces a file, so that a reader or a crash sees the old content or the new, never a part.
///
/// The content is on the disk under its name when this returns.
///
/// # Errors
///
/// Whatever the file system says. The old file is still there then.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::testing::TempDir;

    #[test]
    fn a_file_is_replaced_and_leaves_nothing_beside_it() {
        let dir = TempDir::new("files");
        let path = dir.path().join("sub/a.json");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let dir = TempDir::new("files-error");
        fs::write(dir.path().join("file"), b"").unwrap();
        assert!(replace(&dir.path().join("file/a.json"), b"x").is_err());
    }
}

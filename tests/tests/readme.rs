//! What the README shows is what is tested: its programs are the files themselves.

use std::path::Path;

#[test]
fn programs_in_the_readme_are_the_tested_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for path in [
        "tests/interop/examples/java/Example.java",
        "tests/interop/examples/go/main.go",
        "tests/interop/examples/node/example.js",
        "tests/interop/examples/python/example.py",
        "client/examples/producer.rs",
        "client/examples/consumer.rs",
    ] {
        let program = std::fs::read_to_string(root.join(path)).unwrap();
        assert!(readme.contains(program.trim_end()), "README.md shows another {path}");
    }
}

//! CRC-32C, the checksum of everything that the engine writes.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    low(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// The checksum of several pieces as if they lay side by side.
pub(crate) fn crc32c_of(pieces: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    pieces.iter().for_each(|piece| digest.update(piece));
    low(digest.finalize())
}

fn low(sum: u64) -> u32 {
    u32::try_from(sum).expect("a 32-bit checksum")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_castagnoli_polynomial() {
        // The check value of CRC-32/ISCSI in the catalogue of parametrised CRC algorithms.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_of(&[b"1234", b"", b"56789"]), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }
}

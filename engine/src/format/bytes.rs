//! A reader and a writer of big-endian fields that cannot run out of bounds.

/// Takes fields from the front of a slice; `None` once the slice is too short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

macro_rules! take_int {
    ($($name:ident: $int:ty),*) => {$(
        pub(crate) fn $name(&mut self) -> Option<$int> {
            let (head, rest) = self.0.split_first_chunk()?;
            self.0 = rest;
            Some(<$int>::from_be_bytes(*head))
        }
    )*};
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    take_int!(u8: u8, u32: u32, u64: u64, u128: u128, i64: i64);

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// Bytes behind a 32-bit length.
    pub(crate) fn sized(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(usize::try_from(len).ok()?)
    }

    /// A number as [`put_var`](Put::put_var) writes it; `None` also when it has more than 64 bits.
    pub(crate) fn var(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7F);
            value |= bits << shift;
            if byte < 0x80 {
                return (value >> shift == bits).then_some(value);
            }
        }
        None
    }

    /// A signed number as [`put_signed_var`](Put::put_signed_var) writes it.
    pub(crate) fn signed_var(&mut self) -> Option<i64> {
        let value = self.var()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A 32-bit number as [`put_var`](Put::put_var) writes it.
    pub(crate) fn var_u32(&mut self) -> Option<u32> {
        self.var()?.try_into().ok()
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Appends fields to a vector.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }
    fn put_u128(&mut self, value: u128) {
        self.put(&value.to_be_bytes());
    }
    fn put_i64(&mut self, value: i64) {
        self.put(&value.to_be_bytes());
    }
    /// Seven bits in each byte, the lowest first; the highest bit of a byte says that more follow.
    fn put_var(&mut self, value: u64) {
        let mut left = value;
        while left >= 0x80 {
            self.put_u8(low_byte(left) | 0x80);
            left >>= 7;
        }
        self.put_u8(low_byte(left));
    }
    /// As [`put_var`](Self::put_var), with the sign in the lowest bit.
    fn put_signed_var(&mut self, value: i64) {
        self.put_var((value << 1 ^ value >> 63).cast_unsigned());
    }
    fn put_sized(&mut self, bytes: &[u8]) {
        self.put_u32(crate::units::narrow(bytes.len()));
        self.put(bytes);
    }
}

fn low_byte(value: u64) -> u8 {
    let [.., low] = value.to_be_bytes();
    low
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Fills a slice from the front. The caller has checked that the fields fit.
pub(crate) struct Cursor<'a> {
    dst: &'a mut [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(dst: &'a mut [u8]) -> Self {
        Self { dst, at: 0 }
    }
}

impl Put for Cursor<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        self.dst
            .get_mut(self.at..end)
            .expect("fixed-size fields fit the buffer that was sized for them")
            .copy_from_slice(bytes);
        self.at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_variable_length_read_back() {
        let mut bytes = Vec::new();
        let values = [0, 1, 127, 128, 300, 1 << 32, u64::MAX >> 1, u64::MAX];
        let signed = [0, 1, -1, 63, -64, 64, i64::MAX, i64::MIN];
        values.iter().for_each(|&value| bytes.put_var(value));
        signed.iter().for_each(|&value| bytes.put_signed_var(value));
        let mut fields = Reader::new(&bytes);
        assert_eq!(values.map(|_| fields.var().unwrap()), values);
        assert_eq!(signed.map(|_| fields.signed_var().unwrap()), signed);
        assert!(fields.rest().is_empty());
    }

    #[test]
    fn a_number_that_is_cut_short_or_too_long_is_none() {
        let longest = [0xFF; 9];
        for (last, want) in [(1, Some(u64::MAX)), (2, None), (0x81, None)] {
            let bytes = [&longest[..], &[last]].concat();
            assert_eq!(Reader::new(&bytes).var(), want, "{last}");
        }
        assert_eq!(Reader::new(&longest).var(), None);
        assert_eq!(Reader::new(&[0x80 | 5, 1]).var_u32(), Some(133));
        assert_eq!(Reader::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0x7F]).var_u32(), None);
    }
}

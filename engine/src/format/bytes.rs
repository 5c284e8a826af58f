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
    fn put_sized(&mut self, bytes: &[u8]) {
        self.put_u32(crate::units::narrow(bytes.len()));
        self.put(bytes);
    }
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

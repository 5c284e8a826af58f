//! The `ROCKETMQ` form of a header: 21 fixed bytes, a remark and length-prefixed entries.

use alloc::borrow::Cow;

use crate::{
    command::{
        Command, HeaderError, Language,
        ext::{self, Ext},
    },
    frame::Encoding,
    text::Text,
};

/// A forward reader over big-endian fields.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(super) const fn position(&self) -> usize {
        self.at
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    const fn malformed(&self) -> HeaderError {
        HeaderError::Malformed { position: self.at }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        let chunk = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<N>);
        let chunk = *chunk.ok_or(self.malformed())?;
        self.at += N;
        Ok(chunk)
    }

    fn i16(&mut self) -> Result<i16, HeaderError> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, HeaderError> {
        self.array().map(i32::from_be_bytes)
    }

    /// The next `len` bytes; a negative or too large length is malformed.
    fn bytes(&mut self, len: i32) -> Result<&'a [u8], HeaderError> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let range = end.and_then(|end| self.bytes.get(self.at..end)).ok_or(self.malformed())?;
        self.at += range.len();
        Ok(range)
    }

    /// One entry: key length (2 bytes), key, value length (4 bytes), value.
    pub(super) fn entry(&mut self) -> Result<(&'a [u8], &'a [u8]), HeaderError> {
        let key_len = self.i16()?;
        let key = self.bytes(key_len.into())?;
        let value_len = self.i32()?;
        Ok((key, self.bytes(value_len)?))
    }
}

pub(super) fn parse(header: &[u8]) -> Result<Command<'_>, HeaderError> {
    let mut reader = Reader::new(header, 0);
    let code = reader.i16()?.into();
    let [language] = reader.array()?;
    let version = reader.i16()?.into();
    let opaque = reader.i32()?;
    let flag = reader.i32()?;
    let remark = remark(&mut reader)?;
    let mut ext = Ext::empty(Encoding::Binary, header);
    let ext_len = reader.i32()?;
    let start = reader.position();
    reader.bytes(ext_len)?;
    // Java takes what follows the entries for nothing; it is no reason to lose a connection.
    ext::scan_entries(start, reader.position(), &mut ext)?;
    let language = Language::from_number(language);
    Ok(Command { code, language, version, opaque, flag, remark, ext })
}

fn remark<'a>(reader: &mut Reader<'a>) -> Result<Option<Cow<'a, str>>, HeaderError> {
    let len = reader.i32()?;
    let bytes = reader.bytes(len)?;
    Ok((!bytes.is_empty()).then(|| Text::plain(bytes).to_str()))
}

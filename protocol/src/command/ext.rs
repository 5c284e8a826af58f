//! `extFields`: the string entries of a header, found once and read in place.

use alloc::borrow::Cow;
use core::fmt;

use crate::{
    command::{HeaderError, binary::Reader},
    frame::Encoding,
    scan::{Malformed, Scanner, Value},
    text::Text,
};

/// Entries whose place is noted during the scan. The longest hot header known, a C++ send with
/// ACL entries, has 17; entries beyond the table are scanned again by whoever iterates.
const SPANS: usize = 20;

/// Where one entry lies in the header. Small, because commands are moved.
#[derive(Clone, Copy)]
struct Span {
    key_at: u16,
    key_len: u16,
    value_at: u16,
    value_len: u16,
}

impl Span {
    const EMPTY: Self = Self { key_at: 0, key_len: 0, value_at: 0, value_len: 0 };
    /// Set in a length when escapes are in that text. An entry whose position or length does not
    /// fit is left out of the table, like one that finds no room.
    const ESCAPED: u16 = 1 << 15;
}

/// The entries of a header's `extFields`, already checked.
///
/// Numbers and booleans appear as their text, entries that are `null` do not appear. If a name
/// occurs twice, the later entry counts.
#[derive(Clone)]
pub struct Ext<'a> {
    header: &'a [u8],
    encoding: Encoding,
    spans: [Span; SPANS],
    noted: usize,
    /// Where the entries that found no room in the table start and end; empty if all did.
    rest: (usize, usize),
}

impl<'a> Ext<'a> {
    pub(super) const fn empty(encoding: Encoding, header: &'a [u8]) -> Self {
        Self { header, encoding, spans: [Span::EMPTY; SPANS], noted: 0, rest: (0, 0) }
    }

    /// All entries in the order of the header, names and values undecoded.
    #[inline]
    pub fn entries(&self) -> Entries<'_, 'a> {
        Entries { ext: self, next: 0, rest_at: self.rest.0 }
    }

    /// Calls `each` with every entry in the order of the header. The same as a loop over
    /// [`Ext::entries`], but entries of the table go to `each` in registers.
    #[inline(always)]
    pub(crate) fn for_each(&self, mut each: impl FnMut(Text<'a>, Text<'a>)) {
        for span in self.spans.get(..self.noted).unwrap_or_default() {
            let key = self.text(span.key_at, span.key_len);
            each(key, self.text(span.value_at, span.value_len));
        }
        if self.rest.1 > 0 {
            self.for_each_of_rest(&mut each);
        }
    }

    #[cold]
    fn for_each_of_rest(&self, each: &mut dyn FnMut(Text<'a>, Text<'a>)) {
        let rest = Entries { ext: self, next: self.noted, rest_at: self.rest.0 };
        rest.for_each(|(key, value)| each(key, value));
    }

    /// All entries in the order of the header.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> {
        self.entries().map(|(name, value)| (name.to_str(), value.to_str()))
    }

    /// The entry called `name`; the last one, if there are several.
    pub fn get(&self, name: &str) -> Option<Text<'a>> {
        let matches = |key: &Text<'_>| match key.as_plain() {
            Some(plain) => plain == name.as_bytes(),
            None => key.to_str() == name,
        };
        self.entries().filter(|(key, _)| matches(key)).last().map(|(_, value)| value)
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries().next().is_none()
    }

    /// Notes an entry; false if the table is full.
    #[inline(always)]
    fn push(&mut self, key: Text<'a>, value: Text<'a>) -> bool {
        let span = (|| {
            let (key_at, key_len) = self.place(key)?;
            let (value_at, value_len) = self.place(value)?;
            Some(Span { key_at, key_len, value_at, value_len })
        })();
        match (span, self.spans.get_mut(self.noted)) {
            (Some(span), Some(slot)) => {
                *slot = span;
                self.noted += 1;
                true
            }
            _ => false,
        }
    }

    /// Position and marked length of a text that lies in the header.
    #[inline]
    fn place(&self, text: Text<'a>) -> Option<(u16, u16)> {
        let raw = text.raw();
        let at = raw.as_ptr().addr().checked_sub(self.header.as_ptr().addr())?;
        let len = u16::try_from(raw.len()).ok().filter(|len| len & Span::ESCAPED == 0)?;
        let mark = if text.is_escaped() { Span::ESCAPED } else { 0 };
        Some((u16::try_from(at).ok()?, len | mark))
    }

    #[inline(always)]
    fn text(&self, at: u16, marked_len: u16) -> Text<'a> {
        let (at, len) = (usize::from(at), usize::from(marked_len & !Span::ESCAPED));
        let raw = self.header.get(at..at + len).unwrap_or_default();
        Text::scanned(raw, marked_len & Span::ESCAPED != 0)
    }
}

impl fmt::Debug for Ext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries()).finish()
    }
}

/// Iterator of [`Ext::entries`].
#[derive(Clone, Debug)]
pub struct Entries<'e, 'a> {
    ext: &'e Ext<'a>,
    next: usize,
    rest_at: usize,
}

impl<'a> Iterator for Entries<'_, 'a> {
    type Item = (Text<'a>, Text<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next < self.ext.noted {
            let span = self.ext.spans.get(self.next)?;
            self.next += 1;
            let key = self.ext.text(span.key_at, span.key_len);
            return Some((key, self.ext.text(span.value_at, span.value_len)));
        }
        self.next_of_rest()
    }
}

impl<'a> Entries<'_, 'a> {
    #[cold]
    fn next_of_rest(&mut self) -> Option<(Text<'a>, Text<'a>)> {
        while self.rest_at < self.ext.rest.1 {
            let entry = match self.ext.encoding {
                Encoding::Json => {
                    let mut scanner = Scanner::new(self.ext.header, self.rest_at);
                    let entry = json_entry(&mut scanner).ok()?;
                    scanner.take(b',');
                    self.rest_at = scanner.position();
                    entry
                }
                Encoding::Binary => {
                    let mut reader = Reader::new(self.ext.header, self.rest_at);
                    let (key, value) = reader.entry().ok()?;
                    self.rest_at = reader.position();
                    Some((Text::plain(key), Text::plain(value)))
                }
            };
            if entry.is_some() {
                return entry;
            }
        }
        None
    }
}

/// Reads one `"key":value`; `None` for a value that is `null`.
#[inline(always)]
fn json_entry<'a>(scanner: &mut Scanner<'a>) -> Result<Option<(Text<'a>, Text<'a>)>, Malformed> {
    if let Some(pair) = scanner.plain_pair() {
        return Ok(Some(pair));
    }
    let key = scanner.string()?;
    scanner.expect(b':')?;
    Ok(match scanner.value()? {
        Value::Text(value) => Some((key, value)),
        Value::Null => None,
    })
}

/// Scans the JSON object that starts here.
pub(super) fn scan_object<'a>(
    scanner: &mut Scanner<'a>,
    ext: &mut Ext<'a>,
) -> Result<(), Malformed> {
    (ext.noted, ext.rest) = (0, (0, 0));
    scanner.expect(b'{')?;
    if scanner.take(b'}') {
        return Ok(());
    }
    let mut rest_from = None;
    loop {
        scanner.peek();
        let start = scanner.position();
        if let Some((key, value)) = json_entry(scanner)?
            && rest_from.is_none()
            && !ext.push(key, value)
        {
            rest_from = Some(start);
        }
        if !scanner.take(b',') {
            break;
        }
    }
    let end = scanner.position();
    scanner.expect(b'}')?;
    ext.rest = rest_from.map_or((0, 0), |from| (from, end));
    Ok(())
}

/// Scans binary entries between two positions of the header.
pub(super) fn scan_entries(start: usize, end: usize, ext: &mut Ext<'_>) -> Result<(), HeaderError> {
    let block = ext.header.get(..end).unwrap_or_default();
    let mut reader = Reader::new(block, start);
    let mut rest_from = None;
    while !reader.is_at_end() {
        let start = reader.position();
        let (key, value) = reader.entry()?;
        if rest_from.is_none() && !ext.push(Text::plain(key), Text::plain(value)) {
            rest_from = Some(start);
        }
    }
    ext.rest = rest_from.map_or((0, 0), |from| (from, end));
    Ok(())
}

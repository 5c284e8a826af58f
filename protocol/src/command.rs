//! Command headers: what a frame asks for or answers, and its string entries.
//!
//! [`Command::parse`] passes over the header once. It checks everything, notes where each entry of
//! `extFields` lies in a fixed table on the stack and builds neither a map nor strings. Typed
//! headers are then read from that table by [`crate::headers`].
//!
//! The parser accepts what upstream's does: unknown keys, numbers as digit strings, a language by
//! number, entries that are numbers or booleans, `null` for anything, white space after the end.
//!
//! Source: Apache RocketMQ 4.9.8, `RemotingCommand`, `RemotingSerializable`,
//! `RocketMQSerializable`; liberties of fastjson as measured (facts sheet, sections 1.2 and 5.3).

mod binary;
mod ext;
mod json;

use alloc::borrow::Cow;
use core::fmt;

pub use ext::Ext;

use crate::frame::Encoding;

/// Flag bit of a response.
pub const FLAG_RESPONSE: i32 = 1;

/// Flag bit of a request that must not be answered.
pub const FLAG_ONEWAY: i32 = 2;

/// One parsed header, borrowed from its frame.
#[derive(Clone, Debug)]
pub struct Command<'a> {
    /// Request code, or the response code of an answer; see [`crate::codes`].
    pub code: i32,
    /// What the sender says it is written in.
    pub language: Language,
    /// The sender's ordinal of upstream's `MQVersion`; 0 if absent.
    pub version: i32,
    /// Ties an answer to its request; unique per connection and direction only.
    pub opaque: i32,
    /// [`FLAG_RESPONSE`] and [`FLAG_ONEWAY`].
    pub flag: i32,
    /// Text for people, mostly of a failed request.
    pub remark: Option<Cow<'a, str>>,
    /// The entries of `extFields`.
    pub ext: Ext<'a>,
}

impl<'a> Command<'a> {
    /// Reads a header in one pass.
    ///
    /// Allocates only for a remark with escapes in it.
    ///
    /// # Errors
    ///
    /// [`HeaderError::Malformed`] if the bytes are not a header: close the connection, as upstream
    /// does. [`HeaderError::Invalid`] if one of the fixed fields is not the number that it should
    /// be; upstream closes the connection for that, too.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `RemotingCommand.headerDecode`.
    pub fn parse(encoding: Encoding, header: &'a [u8]) -> Result<Self, HeaderError> {
        match encoding {
            Encoding::Json => json::parse(header),
            Encoding::Binary => binary::parse(header),
        }
    }

    /// Whether this answers a request. C++ clients also set the oneway bit in answers, so this bit
    /// decides first.
    pub const fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Whether this is a request that must not be answered, whatever happens to it.
    pub const fn is_oneway(&self) -> bool {
        self.flag & (FLAG_ONEWAY | FLAG_RESPONSE) == FLAG_ONEWAY
    }
}

/// Why a header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The bytes stop being a header at this position, in bytes. Close the connection.
    Malformed {
        /// Bytes from the start of the header.
        position: usize,
    },
    /// A required field is absent. Answer `SYSTEM_ERROR`.
    Missing(&'static str),
    /// A field's text is not of its type. Answer `SYSTEM_ERROR`.
    Invalid {
        /// Name of the field on the wire.
        field: &'static str,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { position } => write!(f, "malformed header at byte {position}"),
            Self::Missing(field) => write!(f, "the header field {field} is missing"),
            Self::Invalid { field } => write!(f, "the header field {field} is not valid"),
        }
    }
}

impl core::error::Error for HeaderError {}

/// What a peer is written in; decides little more than how some bodies are laid out.
///
/// Source: Apache RocketMQ 5.3, `LanguageCode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are upstream's and say all there is")]
pub enum Language {
    Java,
    Cpp,
    Dotnet,
    Python,
    Delphi,
    Erlang,
    Ruby,
    Other,
    Http,
    Go,
    Php,
    Oms,
    Rust,
    NodeJs,
    /// Absent, or a name or number that no version knows; written as `OTHER`.
    Unknown,
}

impl Language {
    const ALL: &'static [(Self, u8, &'static str)] = &[
        (Self::Java, 0, "JAVA"),
        (Self::Cpp, 1, "CPP"),
        (Self::Dotnet, 2, "DOTNET"),
        (Self::Python, 3, "PYTHON"),
        (Self::Delphi, 4, "DELPHI"),
        (Self::Erlang, 5, "ERLANG"),
        (Self::Ruby, 6, "RUBY"),
        (Self::Other, 7, "OTHER"),
        (Self::Http, 8, "HTTP"),
        (Self::Go, 9, "GO"),
        (Self::Php, 10, "PHP"),
        (Self::Oms, 11, "OMS"),
        (Self::Rust, 12, "RUST"),
        (Self::NodeJs, 13, "NODE_JS"),
    ];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(language, ..)| *language == self).map_or("OTHER", |(.., name)| name)
    }

    /// The number in the binary form.
    pub fn number(self) -> u8 {
        Self::ALL
            .iter()
            .find(|(language, ..)| *language == self)
            .map_or(7, |(_, number, _)| *number)
    }

    /// The language with this number.
    pub fn from_number(number: u8) -> Self {
        let found = Self::ALL.iter().find(|(_, n, _)| *n == number);
        found.map_or(Self::Unknown, |(language, ..)| *language)
    }

    /// The language with this name, or whose number this is in decimal digits.
    pub fn from_name(name: &str) -> Self {
        match Self::ALL.iter().find(|(.., n)| *n == name) {
            Some((language, ..)) => *language,
            None => name.parse().map_or(Self::Unknown, Self::from_number),
        }
    }
}

#[cfg(test)]
mod tests;

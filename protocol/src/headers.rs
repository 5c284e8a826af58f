//! Typed headers: the entries of a command, by request.
//!
//! Each struct reads itself from a parsed [`Command`] in one pass over its entries, without a map,
//! and writes itself into a [`FrameWriter`]. Unknown entries are ignored, so that newer clients
//! pass.
//!
//! Absent fields follow upstream: a required one is [`HeaderError::Missing`], an unboxed one has
//! its default, an optional one is `None`. A number that is none is [`HeaderError::Invalid`]; real
//! brokers answer `SYSTEM_ERROR` in both cases. Booleans are true only for `true`.
//!
//! Source: Apache RocketMQ 4.9.8 and 5.3.3, `RemotingCommand.decodeCommandCustomHeader` and the
//! classes of `protocol.header`, by the names of their fields.

mod admin;
mod consumer;
mod namesrv;
mod offset;
mod pop;
mod pull;
mod send;
mod topic;
mod transaction;

use alloc::borrow::Cow;

pub use admin::*;
pub use consumer::*;
pub use namesrv::*;
pub use offset::*;
pub use pop::*;
pub use pull::*;
pub use send::*;
pub use topic::*;
pub use transaction::*;

pub use crate::command::HeaderError;
use crate::{command::Command, encode::FrameWriter, text::Text};

/// A type that a header field can have.
pub(crate) trait Field<'a>: Sized {
    /// Reads the entry's text; `None` if it is not of this type.
    fn read(text: Text<'a>) -> Option<Self>;

    /// The value of an absent entry; `None` if the field is required.
    fn absent() -> Option<Self> {
        None
    }

    /// Writes the entry, unless it is absent.
    fn write(&self, name: &str, out: &mut FrameWriter<'_, '_>);
}

impl<'a> Field<'a> for Cow<'a, str> {
    fn read(text: Text<'a>) -> Option<Self> {
        Some(text.to_str())
    }

    fn write(&self, name: &str, out: &mut FrameWriter<'_, '_>) {
        out.ext(name, self);
    }
}

impl<'a> Field<'a> for Text<'a> {
    fn read(text: Text<'a>) -> Option<Self> {
        Some(text)
    }

    fn write(&self, name: &str, out: &mut FrameWriter<'_, '_>) {
        out.ext_bytes(name, &self.bytes());
    }
}

impl Field<'_> for i32 {
    fn read(text: Text<'_>) -> Option<Self> {
        text.to_i32()
    }

    fn write(&self, name: &str, out: &mut FrameWriter<'_, '_>) {
        out.ext_int(name, (*self).into());
    }
}

impl Field<'_> for i64 {
    fn read(text: Text<'_>) -> Option<Self> {
        text.to_i64()
    }

    fn write(&self, name: &str, out: &mut FrameWriter<'_, '_>) {
        out.ext_int(name, *self);
    }
}

impl Field<'_> for bool {
    fn read(text: Text<'_>) -> Option<Self> {
        Some(text.to_bool())
    }

    fn write(&self, name: &str, out: &mut FrameWriter<'_, '_>) {
        out.ext_bool(name, *self);
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    fn read(text: Text<'a>) -> Option<Self> {
        T::read(text).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn write(&self, name: &str, out: &mut FrameWriter<'_, '_>) {
        if let Some(value) = self {
            value.write(name, out);
        }
    }
}

/// Reads one field from the entry that the pass found for it.
#[inline]
fn field<'a, T: Field<'a>>(
    name: &'static str,
    found: Option<Text<'a>>,
    default: Option<T>,
) -> Result<T, HeaderError> {
    match found {
        Some(text) => T::read(text).ok_or(HeaderError::Invalid { field: name }),
        None => default.or_else(T::absent).ok_or(HeaderError::Missing(name)),
    }
}

/// A field's name on the wire, from the bytes that the decoder matches.
const fn wire_name(bytes: &'static [u8]) -> &'static str {
    match core::str::from_utf8(bytes) {
        Ok(name) => name,
        Err(_) => panic!("field names are ASCII"),
    }
}

/// Calls `each` with every entry, names decoded.
#[inline(always)]
fn for_each_entry<'a>(command: &Command<'a>, mut each: impl FnMut(&[u8], Text<'a>)) {
    command.ext.for_each(
        #[inline(always)]
        |name, value| {
            let decoded;
            let name = match name.as_plain() {
                Some(plain) => plain,
                None => {
                    decoded = name.bytes();
                    &decoded
                }
            };
            each(name, value);
        },
    );
}

/// Declares a header: its fields with their names on the wire, in upstream's order. `= value` after
/// a field gives the default of an absent entry.
macro_rules! header {
    (
        $(#[$meta:meta])*
        $struct:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty, $name:literal $(= $default:expr)?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $struct $(<$life>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        header!(@impl [$($life)?] $struct $(<$life>)? {
            $($field: $name, [$($default)?];)*
        });
    };
    (@impl [] $($rest:tt)*) => { header!(@impl ['a] $($rest)*); };
    (@impl [$life:lifetime] $struct:ty {
        $($field:ident: $name:literal, [$($default:expr)?];)*
    }) => {
        impl<$life> $struct {
            /// Reads the header from a command's entries.
            ///
            /// # Errors
            ///
            /// [`Missing`](crate::headers::HeaderError::Missing) or
            /// [`Invalid`](crate::headers::HeaderError::Invalid), naming the field.
            pub fn decode(command: &$crate::command::Command<$life>) -> Result<Self, $crate::headers::HeaderError> {
                $(let mut $field = None;)*
                $crate::headers::for_each_entry(command, |name, value| match name {
                    $($name => $field = Some(value),)*
                    _ => {}
                });
                Ok(Self {
                    $($field: $crate::headers::field(
                        const { $crate::headers::wire_name($name) },
                        $field,
                        header!(@default $($default)?),
                    )?,)*
                })
            }

            /// Writes the header's entries; absent ones are left out, as Java leaves out nulls.
            pub fn encode(&self, out: &mut $crate::encode::FrameWriter<'_, '_>) {
                $($crate::headers::Field::write(&self.$field, const { $crate::headers::wire_name($name) }, out);)*
            }
        }
    };
    (@default) => { None };
    (@default $default:expr) => { Some($default) };
}
use header;

#[cfg(test)]
mod tests;

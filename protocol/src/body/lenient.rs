//! Field readers that take what fastjson takes.

use alloc::{borrow::Cow, string::String, vec::Vec};
use core::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};

/// Reads `null` as the type's default.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A scalar as fastjson converts it: number, boolean, string or `null`.
enum Scalar<'de> {
    Null,
    Bool(bool),
    Int(i64),
    Text(Cow<'de, str>),
}

struct ScalarVisitor<'de>(PhantomData<Scalar<'de>>);

impl<'de> Visitor<'de> for ScalarVisitor<'de> {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a boolean, a string or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Scalar::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        let unexpected = |_| E::invalid_value(Unexpected::Unsigned(value), &"a 64-bit number");
        i64::try_from(value).map(Scalar::Int).map_err(unexpected)
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(String::from(value))))
    }
}

fn scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scalar<'de>, D::Error> {
    deserializer.deserialize_any(ScalarVisitor(PhantomData))
}

/// A number, also as a digit string; `null` and the empty string are 0.
pub(super) fn int<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64> + Default,
{
    let value = match scalar(deserializer)? {
        Scalar::Null => return Ok(T::default()),
        Scalar::Text(text) if text.is_empty() => return Ok(T::default()),
        Scalar::Bool(value) => i64::from(value),
        Scalar::Int(value) => value,
        Scalar::Text(text) => text
            .parse()
            .map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &"a number"))?,
    };
    T::try_from(value)
        .map_err(|_| D::Error::invalid_value(Unexpected::Signed(value), &"a smaller number"))
}

/// A boolean; numbers other than 0 and the strings `true` and `1` are true, as for fastjson.
pub(super) fn boolean<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(match scalar(deserializer)? {
        Scalar::Null => false,
        Scalar::Bool(value) => value,
        Scalar::Int(value) => value != 0,
        Scalar::Text(text) => text.eq_ignore_ascii_case("true") || text == "1",
    })
}

/// As [`boolean`], for a member that may be missing.
pub(super) fn some_boolean<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<bool>, D::Error> {
    boolean(deserializer).map(Some)
}

/// A list of numbers, each also as a digit string; `null` is the empty list.
pub(super) fn ints<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i32>, D::Error> {
    struct Item(i32);
    impl<'de> Deserialize<'de> for Item {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            int(deserializer).map(Self)
        }
    }
    let items: Option<Vec<Item>> = Option::deserialize(deserializer)?;
    Ok(items.unwrap_or_default().into_iter().map(|Item(value)| value).collect())
}

/// An enum of upstream: by the name of the constant or by its ordinal.
pub(super) trait WireEnum: Copy + 'static {
    /// All constants, in upstream's order.
    const ALL: &'static [(Self, &'static str)];
}

/// An enum's constant; `None` for `null`, an unknown name or an unknown ordinal, which fastjson
/// reads as null.
pub(super) fn constant<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: WireEnum,
{
    let by_ordinal = |ordinal: i64| {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| T::ALL.get(ordinal))
            .map(|(value, _)| *value)
    };
    Ok(match scalar(deserializer)? {
        Scalar::Int(ordinal) => by_ordinal(ordinal),
        Scalar::Text(text) => match T::ALL.iter().find(|(_, name)| *name == text) {
            Some((value, _)) => Some(*value),
            None => text.parse().ok().and_then(by_ordinal),
        },
        Scalar::Null | Scalar::Bool(_) => None,
    })
}

/// Declares an enum with upstream's constant names, in upstream's order.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $name {
            /// Upstream's name of the constant.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl $crate::body::lenient::WireEnum for $name {
            const ALL: &'static [(Self, &'static str)] = &[$((Self::$variant, $text),)*];
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}
pub(super) use wire_enum;

//! The JSON form of a header.

use crate::{
    command::{
        Command, HeaderError, Language,
        ext::{self, Ext},
    },
    frame::Encoding,
    scan::{Malformed, Scanner, Value},
    text::Text,
};

impl From<Malformed> for HeaderError {
    fn from(Malformed(position): Malformed) -> Self {
        Self::Malformed { position }
    }
}

pub(super) fn parse(header: &[u8]) -> Result<Command<'_>, HeaderError> {
    let mut command = Command {
        code: 0,
        language: Language::Unknown,
        version: 0,
        opaque: 0,
        flag: 0,
        remark: None,
        ext: Ext::empty(Encoding::Json, header),
    };
    let mut scanner = Scanner::new(header, 0);
    scanner.expect(b'{')?;
    if !scanner.take(b'}') {
        loop {
            member(&mut scanner, &mut command)?;
            if !scanner.take(b',') {
                break;
            }
        }
        scanner.expect(b'}')?;
    }
    match scanner.peek() {
        None => Ok(command),
        Some(_) => Err(HeaderError::Malformed { position: scanner.position() }),
    }
}

/// Reads one `"key":value` of the outer object.
fn member<'a>(scanner: &mut Scanner<'a>, command: &mut Command<'a>) -> Result<(), HeaderError> {
    let key = scanner.string()?;
    scanner.expect(b':')?;
    let decoded;
    let name = if let Some(plain) = key.as_plain() {
        plain
    } else {
        decoded = key.bytes();
        &*decoded
    };
    if name == b"extFields" && scanner.peek() == Some(b'{') {
        return ext::scan_object(scanner, &mut command.ext).map_err(HeaderError::from);
    }
    let Value::Text(value) = scanner.value()? else { return Ok(()) };
    match name {
        b"code" => command.code = number("code", value)?,
        b"version" => command.version = number("version", value)?,
        b"opaque" => command.opaque = number("opaque", value)?,
        b"flag" => command.flag = number("flag", value)?,
        b"language" => command.language = Language::from_name(&value.to_str()),
        b"remark" => command.remark = Some(value.to_str()),
        b"extFields" => return Err(HeaderError::Invalid { field: "extFields" }),
        _ => {}
    }
    Ok(())
}

fn number(field: &'static str, value: Text<'_>) -> Result<i32, HeaderError> {
    value.to_i32().ok_or(HeaderError::Invalid { field })
}

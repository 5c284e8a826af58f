//! What a request of the control plane or the name server is answered, before it becomes a frame.

use std::borrow::Cow;

use ringmq_protocol::{
    codes::response,
    command::{Command, HeaderError},
    encode::{self, FrameWriter},
    frame::Encoding,
};
use serde::Serialize;

/// The remark of a handler that sets nothing but the code. 4.9.8 leaves it in place on success of
/// some requests, and admin tools print it.
pub(crate) const NO_REMARK_SET: &str = "not set any response code";

/// One answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) remark: Option<Cow<'static, str>>,
    /// Header entries.
    pub(crate) ext: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Success, with nothing to say.
    pub(crate) fn ok() -> Self {
        Self::default()
    }

    /// Success with this body.
    pub(crate) fn body(body: Vec<u8>) -> Self {
        Self { body, ..Self::default() }
    }

    /// Success with this body as compact JSON.
    pub(crate) fn json(body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self::body(body),
            Err(error) => Self::failed(format!("the answer is no JSON: {error}")),
        }
    }

    /// Success with one header entry.
    pub(crate) fn with(name: &'static str, value: impl ToString) -> Self {
        Self { ext: vec![(name, value.to_string())], ..Self::default() }
    }

    /// A failure that clients tell apart by its code.
    pub(crate) fn error(code: i32, remark: impl Into<Cow<'static, str>>) -> Self {
        Self { code, remark: Some(remark.into()), ..Self::default() }
    }

    /// Any other failure.
    pub(crate) fn failed(remark: impl Into<Cow<'static, str>>) -> Self {
        Self::error(response::SYSTEM_ERROR, remark)
    }

    /// The code is not one that this server knows.
    pub(crate) fn unsupported(code: i32) -> Self {
        let remark = format!(" request type {code} not supported");
        Self::error(response::REQUEST_CODE_NOT_SUPPORTED, remark)
    }

    /// Appends the answer to this request as a whole frame.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>, encoding: Encoding, opaque: i32) {
        let ext = |writer: &mut FrameWriter<'_, '_>| {
            for (name, value) in &self.ext {
                writer.ext(name, value);
            }
        };
        encode::response(out, encoding, opaque, self.code, self.remark.as_deref(), ext, &self.body);
    }
}

impl From<HeaderError> for Answer {
    fn from(error: HeaderError) -> Self {
        Self::failed(error.to_string())
    }
}

/// Lets handlers leave early with `?`: an answer is an answer, whichever way it comes.
pub(crate) fn either(result: Result<Answer, Answer>) -> Answer {
    result.unwrap_or_else(|answer| answer)
}

/// A required text entry of a header.
pub(crate) fn required(command: &Command<'_>, name: &'static str) -> Result<String, Answer> {
    let value = command.ext.get(name).ok_or(HeaderError::Missing(name))?;
    Ok(value.to_str().into_owned())
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::frame;

    use super::*;

    #[test]
    fn an_answer_becomes_a_frame_in_the_encoding_of_its_request() {
        for encoding in [Encoding::Json, Encoding::Binary] {
            let mut out = Vec::new();
            let answer = Answer { body: b"xyz".to_vec(), ..Answer::with("offset", 7) };
            answer.append_to(&mut out, encoding, 42);
            let frame = frame::decode(&out, frame::FRAME_LEN_MAX).unwrap().unwrap();
            assert_eq!((frame.encoding, frame.body), (encoding, &b"xyz"[..]));
            let command = Command::parse(encoding, frame.header).unwrap();
            assert!(command.is_response());
            assert_eq!((command.code, command.opaque, command.version), (0, 42, 409));
            assert_eq!(command.ext.get("offset").unwrap().to_i64(), Some(7));
            assert_eq!(command.remark, None);
        }
    }

    #[test]
    fn an_unknown_code_gets_the_remark_of_upstream() {
        let answer = Answer::unsupported(777);
        assert_eq!(answer.code, 3);
        assert_eq!(answer.remark.as_deref(), Some(" request type 777 not supported"));
    }
}

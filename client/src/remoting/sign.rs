//! Signed requests: who asks, and that nobody changed the request.
//!
//! The same signature serves the access control of 4.9 and that of 5.x.
//!
//! Source: Apache RocketMQ 4.9.8, `AclClientRPCHook`, `AclUtils.combineRequestContent`,
//! `AclSigner.calSignature`.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use ringmq_protocol::{command::Ext, encode::FrameWriter};
use sha1::Sha1;

const ACCESS_KEY: &str = "AccessKey";
const SECURITY_TOKEN: &str = "SecurityToken";
const SIGNATURE: &str = "Signature";

/// By what a client proves who it is. The secret is never sent, nor printed.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    pub(crate) security_token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Adds the entries that say who asks; they are signed like the others.
    pub(super) fn introduce(&self, writer: &mut FrameWriter<'_, '_>) {
        writer.ext(ACCESS_KEY, &self.access_key);
        if let Some(token) = &self.security_token {
            writer.ext(SECURITY_TOKEN, token);
        }
    }

    /// Adds the signature of these entries and this body.
    pub(super) fn sign(&self, ext: &Ext<'_>, body: &[u8], writer: &mut FrameWriter<'_, '_>) {
        let mut entries: Vec<_> = ext.entries().collect();
        // Names are ASCII, whose order is that of Java's strings.
        entries.sort_by(|(a, _), (b, _)| a.bytes().cmp(&b.bytes()));
        // HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(self.secret_key.as_bytes()) else { return };
        for (_, value) in entries {
            mac.update(&value.bytes());
        }
        mac.update(body);
        writer.ext(SIGNATURE, &STANDARD.encode(mac.finalize().into_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::{
        command::Command,
        encode::{Head, begin_frame},
        frame::{self, Encoding},
    };

    use super::*;

    /// The facts sheet's vector (storage A.6), whatever the order of the entries.
    #[test]
    fn signatures_are_upstreams() {
        let credentials = Credentials {
            access_key: "rocketmq2".into(),
            secret_key: "12345678".into(),
            security_token: None,
        };
        let mut out = Vec::new();
        let mut writer = begin_frame(&mut out, Head::request(Encoding::Json, 1, 310, 0));
        writer.ext("topic", "TopicTest");
        writer.ext("group", "g1");
        writer.ext("queueId", "0");
        credentials.introduce(&mut writer);
        writer.finish(0).unwrap();
        let frame = frame::decode(&out, out.len()).unwrap().unwrap();
        let command = Command::parse(frame.encoding, frame.header).unwrap();
        let mut signed = Vec::new();
        let mut writer = begin_frame(&mut signed, Head::request(Encoding::Json, 1, 310, 0));
        credentials.sign(&command.ext, b"hello", &mut writer);
        writer.finish(0).unwrap();
        let frame = frame::decode(&signed, signed.len()).unwrap().unwrap();
        let command = Command::parse(frame.encoding, frame.header).unwrap();
        let signature = command.ext.get(SIGNATURE).unwrap();
        assert_eq!(signature.to_str(), "axAQi07gWAFnBSHZitwnweoppy0=");
    }

    #[test]
    fn secrets_are_not_printed() {
        let credentials = Credentials {
            access_key: "a".into(),
            secret_key: "hidden".into(),
            security_token: Some("hidden".into()),
        };
        assert!(!format!("{credentials:?}").contains("hidden"));
    }
}

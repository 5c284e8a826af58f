//! Pulls that look like an earlier one.

use alloc::{borrow::Cow, boxed::Box, string::String, vec::Vec};

use super::{HEADER_LEN_MAX, MatchedHead, Piece, altered, pieces, take_number};
use crate::{command::Command, frame::Encoding, headers::PullRequest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Varying {
    Opaque,
    QueueId,
    QueueOffset,
    CommitOffset,
}

/// The JSON header of a pull that others are compared with.
///
/// What it gives is what [`Command::parse`] and [`PullRequest::decode`] give for the same bytes.
#[derive(Debug)]
pub struct PullTemplate {
    header: Box<[u8]>,
    pieces: Vec<Piece<Varying>>,
    head: MatchedHead,
    request: PullRequest<'static>,
}

/// What a pull that matched has of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchedPull {
    /// The request's number.
    pub opaque: i32,
    /// The queue.
    pub queue_id: i32,
    /// Offset in messages of the first wanted message.
    pub queue_offset: i64,
    /// Offset in messages up to which the group has consumed.
    pub commit_offset: i64,
}

impl MatchedPull {
    /// What a pull has of its own that was parsed.
    pub const fn of(opaque: i32, request: &PullRequest<'_>) -> Self {
        let PullRequest { queue_id, queue_offset, commit_offset, .. } = *request;
        Self { opaque, queue_id, queue_offset, commit_offset }
    }
}

impl PullTemplate {
    /// Learns from a header. `None` when it is not a pull, or has something that a template cannot
    /// describe; it must be parsed every time then.
    pub fn learn(header: &[u8]) -> Option<Self> {
        if header.len() > HEADER_LEN_MAX {
            return None;
        }
        let command = Command::parse(Encoding::Json, header).ok()?;
        let request = PullRequest::decode(&command).ok()?;
        if command.is_response() || command.remark.is_some() {
            return None;
        }
        let own = MatchedPull::of(command.opaque, &request);
        let owned = |text: Cow<'_, str>| Cow::<'static, str>::Owned(String::from(text));
        let template = Self {
            header: header.into(),
            pieces: pieces(header, &command, Varying::Opaque, Varying::of)?,
            head: MatchedHead::of(&command),
            request: PullRequest {
                consumer_group: owned(request.consumer_group),
                topic: owned(request.topic),
                subscription: request.subscription.map(owned),
                expression_type: request.expression_type.map(owned),
                proxy_forward_client_id: request.proxy_forward_client_id.map(owned),
                ..request
            },
        };
        let same = template.read(header).is_some_and(|read| read == own);
        let altered = altered(&template.header, &template.pieces, |_| false);
        (same && template.is_proven(&altered)).then_some(template)
    }

    /// Whether another header that fits means the same when it is parsed.
    fn is_proven(&self, altered: &[u8]) -> bool {
        let Some(own) = self.read(altered) else { return false };
        let Ok(command) = Command::parse(Encoding::Json, altered) else { return false };
        let Ok(request) = PullRequest::decode(&command) else { return false };
        let MatchedPull { queue_id, queue_offset, commit_offset, .. } = own;
        let ours = PullRequest { queue_id, queue_offset, commit_offset, ..self.request.clone() };
        own == MatchedPull::of(command.opaque, &request)
            && self.head == MatchedHead::of(&command)
            && ours == request
    }

    /// The fields of the head that every header has which looks like the learned one.
    pub const fn head(&self) -> &MatchedHead {
        &self.head
    }

    /// The request that every header makes which looks like the learned one. Queue and offsets are
    /// those of the learned one: [`read`](Self::read) gives them.
    pub const fn request(&self) -> &PullRequest<'static> {
        &self.request
    }

    /// Reads a header that looks like the learned one; `None` for any other.
    pub fn read(&self, header: &[u8]) -> Option<MatchedPull> {
        // A pull without this entry commits nothing.
        let mut own = MatchedPull::default();
        let mut rest = header;
        for piece in &self.pieces {
            rest = rest.strip_prefix(self.header.get(piece.same.clone())?)?;
            let Some(varying) = piece.then else { continue };
            let number;
            (number, rest) = take_number(rest)?;
            match varying {
                Varying::Opaque => own.opaque = i32::try_from(number).ok()?,
                Varying::QueueId => own.queue_id = i32::try_from(number).ok()?,
                Varying::QueueOffset => own.queue_offset = number,
                Varying::CommitOffset => own.commit_offset = number,
            }
        }
        rest.is_empty().then_some(own)
    }
}

impl Varying {
    fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"queueId" => Some(Self::QueueId),
            b"queueOffset" => Some(Self::QueueOffset),
            b"commitOffset" => Some(Self::CommitOffset),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    fn header(queue: i64, offset: i64, commit: i64, opaque: i64) -> String {
        format!(
            "{{\"code\":11,\"extFields\":{{\"commitOffset\":\"{commit}\",\"consumerGroup\":\"CG\",\
             \"expressionType\":\"TAG\",\"maxMsgNums\":\"32\",\"queueId\":\"{queue}\",\
             \"queueOffset\":\"{offset}\",\"subVersion\":\"1700000000000\",\"subscription\":\"*\",\
             \"suspendTimeoutMillis\":\"15000\",\"sysFlag\":\"2\",\"topic\":\"TopicA\"}},\"flag\":0,\
             \"language\":\"GO\",\"opaque\":{opaque},\"serializeTypeCurrentRPC\":\"JSON\",\
             \"version\":431}}"
        )
    }

    /// A header reads the same through the template, or not at all.
    #[track_caller]
    fn check(template: &PullTemplate, header: &[u8], fits: Option<bool>) {
        let read = template.read(header);
        assert!(fits.is_none_or(|fits| fits == read.is_some()), "{}", header.escape_ascii());
        let Some(own) = read else { return };
        let command = Command::parse(Encoding::Json, header).unwrap();
        let MatchedPull { opaque, queue_id, queue_offset, commit_offset } = own;
        let request = template.request().clone();
        let request = PullRequest { queue_id, queue_offset, commit_offset, ..request };
        assert_eq!(request, PullRequest::decode(&command).unwrap());
        assert_eq!((opaque, *template.head()), (command.opaque, MatchedHead::of(&command)));
    }

    #[test]
    fn pulls_that_differ_where_they_may_are_read() {
        let first = header(1, 32, 0, 5);
        let template = PullTemplate::learn(first.as_bytes()).unwrap();
        for same in [first.clone(), header(0, 0, 0, 0), header(7, 1 << 40, 1 << 39, 1 << 30)] {
            check(&template, same.as_bytes(), Some(true));
        }
        for other in [
            header(-1, 32, 0, 5),
            header(1, -1, 0, 5),
            header(1, 32, -1, 5),
            header(1, 32, 0, -5),
            header(1 << 31, 32, 0, 5),
            first.replace("\"*\"", "\"A\""),
            first.replace("\"sysFlag\":\"2\"", "\"sysFlag\":\"3\""),
            first.replace("\"commitOffset\":\"0\",", ""),
            first.replace(",\"version\":431}", ""),
            first.clone() + " ",
        ] {
            check(&template, other.as_bytes(), Some(false));
        }
    }

    #[test]
    fn pulls_without_a_commit_offset_have_a_template_too() {
        let first = header(1, 32, 0, 5).replace("\"commitOffset\":\"0\",", "");
        let template = PullTemplate::learn(first.as_bytes()).unwrap();
        check(&template, first.as_bytes(), Some(true));
        check(&template, header(1, 32, 0, 5).as_bytes(), Some(false));
    }

    #[test]
    fn a_cut_or_changed_pull_is_never_read_as_something_else() {
        let first = header(1, 1_000_032, 77, 5);
        let template = PullTemplate::learn(first.as_bytes()).unwrap();
        for at in 0..first.len() {
            assert!(template.read(&first.as_bytes()[..at]).is_none(), "cut at {at}");
            for change in [b'"', b'\\', b'0', b'9', b'x', 0, 0xff] {
                let mut changed = first.clone().into_bytes();
                changed[at] = change;
                check(&template, &changed, None);
            }
        }
    }

    #[test]
    fn other_requests_teach_nothing() {
        let first = header(1, 32, 0, 5);
        for odd in [
            header(1, -1, 0, 5),
            first.replace("\"flag\":0", "\"flag\":1"),
            first.replace("\"topic\":\"TopicA\"", "\"other\":\"TopicA\""),
            first.replace("\"sysFlag\":\"2\"", "\"sysFlag\":\"2\",\"opaque\":\"1\""),
            first.replace("\"opaque\":5", "\"opaque\" :5,\"x\":{\"opaque\":5}"),
        ] {
            assert!(PullTemplate::learn(odd.as_bytes()).is_none(), "{odd}");
        }
    }
}

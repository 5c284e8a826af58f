//! Namespaces: names of several tenants side by side in one cluster.
//!
//! A client with a namespace puts it before its topics and groups: `T` is `ns%T` to brokers, and
//! `%RETRY%g` is `%RETRY%ns%g`. The application sees the names without it. Everything that is sent
//! (routes, heartbeats, offsets, locks, messages) has the wrapped names.
//!
//! Source: Apache RocketMQ 4.9.8, `NamespaceUtil`.

use std::{borrow::Cow, sync::Arc};

use ringmq_protocol::names::{self, DLQ_PREFIX, RETRY_PREFIX};

use crate::MessageQueue;

/// Stands between namespace and name.
const SEPARATOR: char = '%';

/// A client's namespace, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespace(Option<Arc<str>>);

impl Namespace {
    /// An empty name means none.
    pub(crate) fn new(name: &str) -> Self {
        Self((!name.is_empty()).then(|| name.into()))
    }

    /// The name, as property `INSTANCE_ID` of a message carries it.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// The name of a topic or group among brokers. Wraps nothing twice, and no system topic.
    pub(crate) fn wrap<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let Some(namespace) = self.name() else { return name.into() };
        let (prefix, plain) = split(name);
        let is_system = names::is_system_topic(name) || names::is_system_group(name);
        if is_system || plain.is_empty() || is_wrapped(plain, namespace) {
            return name.into();
        }
        format!("{prefix}{namespace}{SEPARATOR}{plain}").into()
    }

    /// The name of a topic or group for the application.
    pub(crate) fn unwrap<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let Some(namespace) = self.name() else { return name.into() };
        let (prefix, rest) = split(name);
        let plain = rest.strip_prefix(namespace).and_then(|rest| rest.strip_prefix(SEPARATOR));
        match plain {
            Some(plain) if prefix.is_empty() => plain.into(),
            Some(plain) => format!("{prefix}{plain}").into(),
            None => name.into(),
        }
    }

    /// The queue as brokers call it.
    pub(crate) fn wrap_queue(&self, queue: &MessageQueue) -> MessageQueue {
        match self.wrap(queue.topic()) {
            Cow::Borrowed(_) => queue.clone(),
            Cow::Owned(topic) => queue.with_topic(topic.into()),
        }
    }

    /// The queue as the application calls it.
    pub(crate) fn unwrap_queue(&self, queue: &MessageQueue) -> MessageQueue {
        match self.unwrap(queue.topic()) {
            Cow::Borrowed(topic) if topic.len() == queue.topic().len() => queue.clone(),
            topic => queue.with_topic(topic.into()),
        }
    }
}

fn is_wrapped(plain: &str, namespace: &str) -> bool {
    plain.strip_prefix(namespace).is_some_and(|rest| rest.starts_with(SEPARATOR))
}

/// What makes a retry or dead letter topic, and the rest of the name.
fn split(name: &str) -> (&str, &str) {
    for prefix in [RETRY_PREFIX, DLQ_PREFIX] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return (prefix, rest);
        }
    }
    ("", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(plain: &str, wrapped: &str) {
        let namespace = Namespace::new("ns");
        assert_eq!(namespace.wrap(plain), wrapped);
        assert_eq!(namespace.wrap(wrapped), wrapped, "not twice");
        assert_eq!(namespace.unwrap(wrapped), plain);
        assert_eq!(Namespace::default().wrap(plain), plain);
        assert_eq!(Namespace::default().unwrap(wrapped), wrapped);
        let queue = MessageQueue::new(plain, "b", 1);
        let inside = namespace.wrap_queue(&queue);
        assert_eq!(inside.topic(), wrapped);
        assert_eq!(namespace.unwrap_queue(&inside), queue);
    }

    #[test]
    fn names_get_the_namespace_behind_what_makes_them_special() {
        check("T", "ns%T");
        check("nsT", "ns%nsT");
        check("%RETRY%g", "%RETRY%ns%g");
        check("%DLQ%g", "%DLQ%ns%g");
    }

    #[test]
    fn system_names_belong_to_everybody() {
        for name in ["TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_x", "CID_RMQ_SYS_TRANS"] {
            check(name, name);
        }
    }

    #[test]
    fn names_of_other_namespaces_stay_whole() {
        assert_eq!(Namespace::new("ns").unwrap("other%T"), "other%T");
        assert_eq!(Namespace::new("ns").unwrap("%RETRY%other%T"), "%RETRY%other%T");
    }
}

//! What a consumer wants of a topic: messages of some tags, or those that an expression picks.

use ringmq_protocol::{
    body::SubscriptionData,
    tags::{TagSet, java_hash},
};

use crate::{Invalid, ReceivedMessage, clock};

/// Which messages of a topic a consumer gets.
///
/// All members of a group must have the same filters: brokers keep one for each group and topic.
///
/// ```
/// use ringmq_client::Filter;
///
/// let all = Filter::All;
/// let some = Filter::tags("created || paid");
/// let expensive = Filter::sql("price > 1000 AND region = 'eu'");
/// assert_eq!(Filter::from("*"), all);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Filter {
    /// All messages.
    All,
    /// Messages with one of these tags, separated by `||`; `*` stands for all messages.
    Tags(String),
    /// Messages whose properties fulfil an expression of SQL92. Brokers refuse it unless they are
    /// configured for it (`enablePropertyFilter`).
    Sql(String),
}

impl Filter {
    /// Messages with one of these tags, separated by `||`.
    pub fn tags(expression: impl Into<String>) -> Self {
        match expression.into() {
            text if text.is_empty() || text == "*" => Self::All,
            text => Self::Tags(text),
        }
    }

    /// Messages whose properties fulfil an expression of SQL92.
    pub fn sql(expression: impl Into<String>) -> Self {
        Self::Sql(expression.into())
    }
}

impl From<&str> for Filter {
    fn from(tags: &str) -> Self {
        Self::tags(tags)
    }
}

/// A filter, read and given a version.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    filter: Filter,
    tags: TagSet,
    version: i64,
}

impl Subscription {
    /// # Errors
    ///
    /// [`Invalid::TagExpression`].
    pub(crate) fn new(filter: Filter) -> Result<Self, Invalid> {
        let tags = match &filter {
            Filter::All | Filter::Sql(_) => TagSet::All,
            Filter::Tags(text) => {
                TagSet::parse(text).map_err(|_| Invalid::TagExpression(text.clone()))?
            }
        };
        Ok(Self { filter, tags, version: clock::epoch_ms() })
    }

    pub(crate) const fn is_sql(&self) -> bool {
        matches!(self.filter, Filter::Sql(_))
    }

    pub(crate) fn text(&self) -> &str {
        match &self.filter {
            Filter::All => "*",
            Filter::Tags(text) | Filter::Sql(text) => text,
        }
    }

    /// Upstream's name of the kind of expression.
    pub(crate) const fn kind(&self) -> &'static str {
        if self.is_sql() { "SQL92" } else { "TAG" }
    }

    /// Rises when the subscription changes. Unit: milliseconds since 1970.
    pub(crate) const fn version(&self) -> i64 {
        self.version
    }

    /// Whether the message's tag is wanted. Brokers compare hashes only, so that messages of other
    /// tags come now and then.
    pub(crate) fn wants(&self, message: &ReceivedMessage) -> bool {
        self.tags.matches(message.tag())
    }

    /// What the heartbeat says about it.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `FilterAPI.buildSubscriptionData`.
    pub(crate) fn data(&self, topic: &str) -> SubscriptionData {
        let tags = match &self.tags {
            TagSet::All => Vec::new(),
            TagSet::Tags(tags) => tags.clone(),
        };
        SubscriptionData {
            class_filter_mode: false,
            code_set: tags.iter().map(|tag| java_hash(tag)).collect(),
            expression_type: Some(self.kind().into()),
            sub_string: self.text().into(),
            sub_version: self.version,
            tags_set: tags,
            topic: topic.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_have_upstreams_form() {
        let some = Subscription::new("TagA || TagB".into()).unwrap().data("T");
        assert_eq!(some.code_set, [2_598_919, 2_598_920]);
        assert_eq!(some.tags_set, ["TagA", "TagB"]);
        assert_eq!((some.sub_string.as_str(), some.is_tag()), ("TagA || TagB", true));
        let all = Subscription::new("".into()).unwrap().data("T");
        assert_eq!((all.sub_string.as_str(), all.tags_set.len()), ("*", 0));
        let sql = Subscription::new(Filter::sql("a > 5")).unwrap().data("T");
        assert_eq!(
            (sql.sub_string.as_str(), sql.tags_set.len(), sql.is_tag()),
            ("a > 5", 0, false)
        );
        let none = Subscription::new("||".into()).map(drop);
        assert_eq!(none, Err(Invalid::TagExpression("||".into())));
    }
}

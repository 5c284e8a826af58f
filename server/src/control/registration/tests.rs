use super::*;
use crate::control::{NewTopic, testing, topics::Topics};

fn topics(count: usize) -> Topics {
    let mut topics = Topics::new(&testing::broker_config());
    for number in 0..count {
        add(&mut topics, &format!("T{number}"));
    }
    topics
}

fn add(topics: &mut Topics, name: &str) -> Arc<TopicConfig> {
    let how = NewTopic::OfGroup { queue_nums: 1, unit_mode: false };
    topics.create(name, &how, 5).unwrap()
}

fn names(changes: Option<Vec<Arc<TopicConfig>>>) -> Option<Vec<String>> {
    changes.map(|changes| changes.iter().map(|topic| topic.name.to_string()).collect())
}

#[test]
fn a_link_gets_what_changed_since_it_last_knew() {
    let mut topics = topics(0);
    let mut now = Announcement::first(topics.all().clone(), topics.version());
    assert_eq!(names(now.changes_since(1)), Some(Vec::new()));
    assert_eq!(names(now.changes_since(0)), None);
    for name in ["A", "B", "C"] {
        let updated = vec![add(&mut topics, name)];
        now.change(updated, topics.all().clone(), topics.version());
    }
    assert_eq!(now.number, 4);
    assert_eq!(names(now.changes_since(2)), Some(vec!["C".into(), "B".into()]));
    assert_eq!(names(now.changes_since(4)), Some(Vec::new()));
    // The same topic again counts once, with its latest content.
    now.change(vec![add(&mut topics, "B")], topics.all().clone(), topics.version());
    assert_eq!(names(now.changes_since(1)), Some(vec!["B".into(), "C".into(), "A".into()]));
}

#[test]
fn a_link_that_fell_too_far_behind_gets_everything() {
    let topics = topics(RECENT_MAX + 10);
    let mut now = Announcement::first(topics.all().clone(), topics.version());
    let all: Vec<_> = topics.all().values().cloned().collect();
    now.change(all[..10].to_vec(), topics.all().clone(), topics.version());
    now.change(all[10..RECENT_MAX + 5].to_vec(), topics.all().clone(), topics.version());
    assert_eq!(now.recent.len(), RECENT_MAX);
    // Five changes of announcement 2 were dropped.
    assert!(now.changes_since(1).is_none());
    assert_eq!(now.changes_since(2).unwrap().len(), RECENT_MAX - 5);
    now.change(all.clone(), topics.all().clone(), topics.version());
    assert!(now.changes_since(3).is_none(), "not all of announcement 4 is there");
    assert_eq!(now.changes_since(4).unwrap().len(), 0);
}

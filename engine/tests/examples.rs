//! The examples do what they say, on real files and from run to run.

#[path = "../examples/counter.rs"]
mod counter;
#[path = "../examples/kv_wal.rs"]
mod kv_wal;
#[path = "../examples/task_queue.rs"]
mod task_queue;

#[test]
fn a_key_value_store_finds_its_pairs_again() {
    let dir = tempfile::tempdir().unwrap();
    for run in 1..4 {
        assert_eq!(kv_wal::run(dir.path()).unwrap(), run);
    }
}

#[test]
fn counters_add_up_over_runs_and_apart_from_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let ids = |run: usize, count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{run}-{n}")).collect()
    };
    for run in 1..4 {
        let sum = i64::try_from(run).unwrap();
        let up = ids(run, 150);
        assert_eq!(counter::run(dir.path(), "up", 2, &up).unwrap(), (300 * sum, 150 * sum));
        let again = counter::run(dir.path(), "up", 2, &up[140..]).unwrap();
        assert_eq!(again, (300 * sum, 150 * sum), "an event that is there is not added again");
        let down = ids(run, 1);
        assert_eq!(counter::run(dir.path(), "down", -1, &down).unwrap(), (-sum, sum));
    }
}

#[test]
fn each_group_works_on_every_task_once_when_nothing_crashes() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        assert_eq!(task_queue::run(dir.path(), 50).unwrap(), [50, 50]);
    }
}

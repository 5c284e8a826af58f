use std::{cell::RefCell, rc::Rc, sync::mpsc, thread, time::Duration};

use super::*;

/// A request: who asked, and a number.
type Question = (u32, u64);

fn two(entries: usize) -> (Links<Question, Question>, Links<Question, Question>) {
    let mut links = mesh(2, entries).into_iter();
    (links.next().unwrap(), links.next().unwrap())
}

fn answers(links: &Links<Question, Question>, from: usize) -> Vec<Question> {
    let mut taken = Vec::new();
    links.collect(from, &mut Vec::new(), |answer| taken.push(answer));
    taken
}

#[test]
fn credits_bound_what_is_outstanding_until_the_answer_is_taken() {
    let (a, b) = two(2);
    for number in 0..2 {
        a.ask(a.try_credit(1).unwrap(), (0, number));
    }
    assert!(a.try_credit(1).is_none(), "both credits are taken");
    while let Some(request) = b.next_request(0) {
        b.answer(0, request);
    }
    assert!(a.try_credit(1).is_none(), "answers in the ring still hold their credit");
    assert_eq!(answers(&a, 1), [(0, 0), (0, 1)]);
    assert!(a.try_credit(1).is_some());
}

#[test]
fn a_credit_that_is_not_used_goes_back() {
    let (a, _b) = two(1);
    drop(a.try_credit(1).unwrap());
    assert!(a.try_credit(1).is_some());
}

#[test]
fn both_directions_have_credits_of_their_own() {
    let (a, b) = two(1);
    a.ask(a.try_credit(1).unwrap(), (0, 7));
    b.ask(b.try_credit(0).unwrap(), (1, 8));
    assert_eq!(b.next_request(0), Some((0, 7)));
    assert_eq!(a.next_request(1), Some((1, 8)));
    a.answer(1, (1, 8));
    b.answer(0, (0, 7));
    assert_eq!(answers(&a, 1), [(0, 7)]);
    assert_eq!(answers(&b, 0), [(1, 8)]);
}

#[test]
fn whoever_waits_for_credit_is_served_in_turn() {
    let (a, b) = two(1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let served = Rc::new(RefCell::new(Vec::new()));
    let a = Rc::new(a);
    tokio::task::LocalSet::new().block_on(&runtime, async {
        for waiter in 0..3 {
            let (a, served) = (a.clone(), served.clone());
            tokio::task::spawn_local(async move {
                let credit = a.credit(1).await;
                served.borrow_mut().push(waiter);
                a.ask(credit, (waiter, 0));
            });
        }
        while served.borrow().len() < 3 {
            tokio::task::yield_now().await;
            while let Some(request) = b.next_request(0) {
                b.answer(0, request);
            }
            assert!(answers(&a, 1).len() <= 1, "one credit, one answer at a time");
        }
    });
    assert_eq!(*served.borrow(), [0, 1, 2]);
}

#[test]
fn a_waiter_that_goes_away_leaves_its_credit_to_the_next() {
    let (a, b) = two(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        a.ask(a.try_credit(1).unwrap(), (0, 0));
        let mut gone = Box::pin(a.credit(1));
        let mut stays = Box::pin(a.credit(1));
        assert!(tokio::time::timeout(Duration::ZERO, &mut gone).await.is_err());
        assert!(tokio::time::timeout(Duration::ZERO, &mut stays).await.is_err());
        b.answer(0, b.next_request(0).unwrap());
        assert_eq!(answers(&a, 1).len(), 1);
        // The credit has been given to the first in line, who never takes it.
        drop(gone);
        a.ask(stays.await, (0, 1));
        assert_eq!(b.next_request(0), Some((0, 1)));
    });
}

#[test]
fn an_answer_is_seen_before_the_nudge_that_followed_it() {
    let (a, b) = two(1);
    a.ask(a.try_credit(1).unwrap(), (0, 1));
    b.answer(0, b.next_request(0).unwrap());
    b.nudge(0, 99);
    let mut nudges = Vec::new();
    let mut seen = Vec::new();
    a.collect(1, &mut nudges, |answer| seen.push(answer));
    assert_eq!((seen, nudges), (vec![(0, 1)], vec![99]));
}

#[test]
fn nobody_sleeps_while_something_waits() {
    let (a, b) = two(1);
    assert!(b.may_sleep());
    a.ask(a.try_credit(1).unwrap(), (0, 1));
    assert!(!b.may_sleep(), "a request waits");
    b.answer(0, b.next_request(0).unwrap());
    assert!(b.may_sleep());
    assert!(!a.may_sleep(), "an answer waits");
    answers(&a, 1);
    assert!(a.may_sleep());
    b.nudge(0, 5);
    assert!(!a.may_sleep(), "a nudge waits");
}

#[test]
fn a_bell_that_rang_before_the_sleep_is_not_lost() {
    let (a, b) = two(1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(b.may_sleep());
    a.ask(a.try_credit(1).unwrap(), (0, 1));
    a.ring();
    runtime.block_on(b.rung());
    assert_eq!(b.next_request(0), Some((0, 1)));
}

/// One thread: asks `per_task` times from each of `tasks` tasks, serves the others meanwhile, and
/// sleeps whenever it may. Returns the sum of the answers' numbers.
async fn busy(links: Rc<Links<Question, Question>>, tasks: u32, per_task: u64) -> u64 {
    let me = links.me;
    let sum = Rc::new(Cell::new(0));
    let left = Rc::new(Cell::new(u64::from(tasks) * per_task * (links.threads() as u64 - 1)));
    for task in 0..tasks {
        let links = links.clone();
        tokio::task::spawn_local(async move {
            for number in 0..per_task {
                for to in (0..links.threads()).filter(|to| *to != me) {
                    let credit = links.credit(to).await;
                    links.ask(credit, (task, number));
                    links.ring();
                }
            }
        });
    }
    let mut nudges = Vec::new();
    let mut expected = left.get();
    loop {
        for other in (0..links.threads()).filter(|other| *other != me) {
            while let Some((task, number)) = links.next_request(other) {
                links.answer(other, (task, number + 1));
                links.nudge(other, number);
            }
            links.collect(other, &mut nudges, |(_, number)| {
                sum.set(sum.get() + number);
                left.set(left.get() - 1);
            });
            expected -= nudges.drain(..).count() as u64;
        }
        links.ring();
        if left.get() == 0 && expected == 0 {
            return sum.get();
        }
        if links.may_sleep() {
            links.rung().await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

#[track_caller]
fn check_every_request_is_answered(threads: usize, entries: usize, tasks: u32, per_task: u64) {
    let (done, results) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let finished = Arc::new(Mutex::new(finished));
    for links in mesh::<Question, Question>(threads, entries) {
        let (done, finished) = (done.clone(), finished.clone());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let links = Rc::new(links);
            tokio::task::LocalSet::new().block_on(&runtime, async {
                done.send(busy(links.clone(), tasks, per_task).await).unwrap();
                // Others may still ask: serve until everyone is through.
                let me = links.me;
                loop {
                    for other in (0..links.threads()).filter(|other| *other != me) {
                        while let Some(request) = links.next_request(other) {
                            links.answer(other, (request.0, request.1 + 1));
                            links.nudge(other, request.1);
                        }
                    }
                    links.ring();
                    let end = finished.lock().unwrap().try_recv();
                    if end == Err(mpsc::TryRecvError::Disconnected) {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
        });
    }
    let each: u64 = (1..=per_task).sum::<u64>() * u64::from(tasks) * (threads as u64 - 1);
    for _ in 0..threads {
        let sum = results.recv_timeout(Duration::from_secs(60)).expect("a thread is stuck");
        assert_eq!(sum, each);
    }
    drop(finish);
}

#[test]
fn two_threads_with_one_entry_answer_everything() {
    check_every_request_is_answered(2, 1, 8, 2_000);
}

#[test]
fn two_threads_with_two_entries_answer_everything() {
    check_every_request_is_answered(2, 2, 64, 300);
}

#[test]
fn four_threads_with_two_entries_answer_everything() {
    check_every_request_is_answered(4, 2, 16, 100);
}

#[test]
fn two_threads_with_many_entries_answer_everything() {
    check_every_request_is_answered(2, 1024, 64, 1_000);
}

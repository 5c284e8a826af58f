#!/usr/bin/env python3
"""Breaks the engine on purpose, one way at a time, and lets the simulation find each.

    tests/mutations/run.py [--seeds N] [--scratch DIR] [NAME ...]

Every mutation replaces one piece of the engine's text in a copy of it, which is built with a target
folder of its own, into a program that runs seeds as `simulate` does, but needs nothing else of the
workspace. Printed is the check that noticed it. What no seed notices, a test of the engine may: those
that begin with what seeds come to too seldom. One that survives both is a hole; one whose text is not
found any more has to follow the code. Either ends the run with 1.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SRC = "engine/src/"

# Name, file, what stands there once, what is put in its place.
MUTATIONS = [
    ("acknowledge before the device has answered", "shard/commit.rs",
     "CommitBy::Durable => self.commit(self.kept),", "CommitBy::Durable => self.commit(self.appended),"),
    ("acknowledge out of log order", "shard/commit.rs",
     "&& group.state == State::Durable\n        {\n            self.durable_end",
     "&& self.pending.iter().any(|group| group.state == State::Durable)\n        {\n            self.durable_end"),
    ("a failed write counts as done", "shard/commit.rs",
     'self.fail("writing the log", &cause);',
     "self.pending.range_mut(at..at + count).for_each(|group| group.state = State::Durable);"
     " let _ = &cause;"),
    ("more writes in flight than allowed", "shard/commit.rs",
     "while self.writing < self.limits.writes_in_flight {", "loop {"),
    ("a header proves what is only in memory", "shard/append.rs",
     "committed: self.settled(),", "committed: self.committed(),"),
    ("memory is used again before it is on the device", "shard/append.rs",
     ".memory_for(position, len_min, wanted, self.settled())",
     ".memory_for(position, len_min, wanted, self.committed())"),
    ("a checkpoint does not wait for what it tells", "shard/checkpoint.rs",
     "let is_ahead = self.durable < through.sequence;", "let is_ahead = false;"),
    ("a segment goes before its trim is on the device", "shard/retention.rs",
     "let settled = self.settled() >= *sequence;", "let settled = self.committed() >= *sequence;"),
    ("a cold read goes beyond what is on the device", "shard/cold.rs",
     "Ordering::Equal => Some((start, end.min(self.durable_end.byte))),",
     "Ordering::Equal => Some((start, end)),"),
    ("what a kill leaves in memory is not looked for", "recovery.rs",
     "self.restore()?;\n            let mut place", "let mut place"),
    # Either alone is enough as a rule: what an earlier life left behind the end is of a life that was over,
    # and chains to another predecessor.
    ("groups neither chain to their predecessor nor belong to a life that was not over", "recovery.rs",
     "!self.lives.left_over(header)\n            && header.sequence == covered.sequence.next()\n"
     "            && header.previous == covered.header_crc", "header.sequence == covered.sequence.next()"),
    ("the epoch of what is cut off is forgotten", "recovery.rs",
     "let epoch = scan.epoch.max(scan.views.covered.epoch);", "let epoch = scan.views.covered.epoch;"),
    ("a group of an earlier life is as good as any", "recovery/lives.rs",
     "self.starts.iter().any(|&(start, life)| start <= sequence && epoch < life)", "false"),
    ("a group that was taken stays taken, whatever comes to light", "recovery.rs",
     "self.lives.passed(sequence, epoch)", "false"),
    ("what lies behind a damaged header tells nothing of its life", "recovery.rs",
     "self.each_later(place, u64::MAX, |at, _| at.ordinal > place.ordinal)?;\n        Ok(self.follows(&there))",
     "Ok(self.follows(&there))"),
    ("a checkpoint tells nothing of lives", "recovery.rs",
     "self.lives.note(known.sequence, known.epoch);", "let _ = known;"),
    ("a torn record is taken for sound", "recovery.rs",
     "Some(group) if group.records().all(|record| record.is_sound()) => Found::Next(padded),",
     "Some(_) => Found::Next(padded),"),
    ("the table's checksum is not looked at", "format/group.rs",
     "if crate::crc::crc32c(behind) != header.table_crc {", "if false {"),
    ("the header's checksum is not looked at", "format/group.rs",
     "crate::crc::crc32c(src.get(..CHECKED_LEN)?) == crc\n            &&", "crc == crc\n            &&"),
    ("every broken end is damage", "recovery.rs",
     "Ok(proven >= expected)\n    }", "Ok(proven >= expected || self.views.covered.sequence.get() > 3)\n    }"),
    ("no broken end is damage", "recovery.rs",
     "Found::Broken { .. } | Found::Nothing if !self.is_damage(place)? => {",
     "Found::Broken { .. } | Found::Nothing if !self.is_damage(place)? || true => {"),
    ("damage costs the whole group", "recovery.rs",
     "self.note_damage(place);\n                    self.apply(place, padded, true)?;",
     "let next = self.next_behind(place)?;\n                    self.skip_to(next)?; let _ = padded;"),
    ("a checkpoint counts without its group", "recovery.rs",
     "self.has_group(&checkpoint.from)? && self.has_group(&checkpoint.through)?;",
     "self.has_group(&checkpoint.from)? || true;"),
    ("a damaged checkpoint counts", "format/checkpoint.rs",
     "if crate::crc::crc32c(body) != Reader::new(crc).u32()? {", "if Reader::new(crc).u32()? == 1 {"),
    ("an unsound piece of changes counts", "format/changes.rs",
     "let sound = ours && fields.u32()? == checksum(piece)?;",
     "let sound = ours && fields.u32()? != 1;"),
    ("a read error is the end of the log", "recovery.rs",
     "self.source.read(place.ordinal, place.byte, dst)?\n", "self.source.read(place.ordinal, place.byte, dst).unwrap_or(0)\n"),
    ("the open group's facts are told at once", "view/facts.rs",
     "pub(crate) fn committed(&self, key: &[u8]) -> Option<&[u8]> {",
     "pub(crate) fn committed(&self, key: &[u8]) -> Option<&[u8]> {\n        if let Some(appended) = self.appended.get(key) { return appended.value.as_deref(); }"),
    ("an offset is given out twice", "shard/append.rs",
     "slot.advance(records.len());", "slot.advance(records.len().saturating_sub(usize::from(records.len() == 3)));"),
    ("a queue's records are not swept before its segment goes", "shard/retention.rs",
     "state.home < below && self.views.facts.awaited(key).is_none()", "false && state.home < below"),
    ("queue states are not swept before their segment goes", "shard/retention.rs",
     "let lives = queue.slot == Slot::Live && queue.home < below;",
     "let lives = false && queue.slot == Slot::Live && queue.home < below;"),
    ("a sweep puts an old fact behind a newer one", "shard/retention.rs",
     "if same && facts.awaited(&key).is_none() {", "if same || true {"),
    ("a segment goes although checkpoints replay from it", "shard/retention.rs",
     "if self.checkpoint.replay_ordinal() <= first {", "if false && self.checkpoint.replay_ordinal() <= first {"),
    ("minimum offsets are not raised", "shard/retention.rs",
     "let Some(before) = self.views.raise_min(number, end) else { return };",
     "let Some(before) = self.views.raise_min(number, end.min(3)) else { return };"),
    ("the newest segment is given up", "shard/retention.rs",
     "if first >= self.views.covered.place.ordinal {", "if first > self.views.covered.place.ordinal {"),
    ("waiters are not woken by some tags", "view/queue.rs",
     "let wanted = waiter.filter.matches(tag);", "let wanted = tag != 3 && waiter.filter.matches(tag);"),
    ("waiters are woken by any tag", "view/queue.rs",
     "let wanted = waiter.filter.matches(tag);", "let wanted = true;"),
    ("what is read back hides newer blocks", "view/index.rs",
     ".min().unwrap_or(self.next).min(self.next);", ".max().map_or(u64::MAX, |_| u64::MAX);"),
    ("store time follows the clock back", "shard/append.rs",
     "self.store_time = self.store_time.max(now);", "self.store_time = now;"),
    ("zeros go over the head of the log", "shard/prepare.rs",
     "let used = if ordinal == head.ordinal { head.byte.next_multiple_of(PAGE) } else { 0 };", "let used = 0;"),
    ("a filter lets every tag pass", "view/queue.rs",
     "Self::Tags(tags) => tags.contains(&tag),", "Self::Tags(tags) => tags.contains(&tag) || tag == 2,"),
    ("where queues go on is told once", "shard/repeat.rs",
     "        if count == 0 {\n            return;", "        if count < 1_000_000 {\n            return;"),
    ("copies end with the next group", "shard/repeat.rs",
     "const APART: u64 = 4096;", "const APART: u64 = 0;"),
    ("a life does not repeat what the last one left", "recovery.rs",
     "Ok(Repeats::behind(group.as_ref()))", "Ok(Repeats::behind(group.as_ref().filter(|_| false)))"),
    ("a trim is told once", "shard/retention.rs",
     "self.repeats.note(What::Trim(below), trim.len());", ""),
    ("a deletion is told once", "shard/append.rs",
     "self.repeats.note(What::Deletion(queue, incarnation), deletion.len());", ""),
    ("a fact is told once", "shard/append.rs",
     "self.repeats.note(What::Fact(key.into(), sequence), record.len());", ""),
    ("a queue is opened once", "shard/append.rs",
     "if self.repeats.note(What::State(queue), len)\n", "if true\n"),
    ("a checkpoint that was passed over counts again", "recovery.rs",
     ".filter(|&(_, rejected)| rejected)", ".filter(|_| false)"),
    ("a copy is as good as what it says", "format/group.rs",
     "self.entry.kind != Kind::Message && self.entry.tag == COPY", "false"),
    ("retention waits for checkpoints that nobody writes", "shard/checkpoint.rs",
     "if self.none_counts() { u64::MAX }", "if false { u64::MAX }"),
    ("files of the views may stop the log", "shard/retention.rs",
     "const SEGMENTS_MIN: u64 = 4;", "const SEGMENTS_MIN: u64 = 0;"),
]


def mutate(path, before, after):
    text = path.read_text()
    if text.count(before) != 1:
        return False
    path.write_text(text.replace(before, after))
    return True


MANIFEST = """[package]
name = "runner"
version = "0.0.0"
edition = "2024"

[dependencies]
ringmq-engine = { path = "../tree/engine", features = ["sim"] }

[profile.release]
opt-level = 1
incremental = true

[workspace]
"""

RUNNER = """fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds: u64 = std::env::args().nth(1).and_then(|seeds| seeds.parse().ok()).unwrap_or(1);
    for seed in 1..=seeds {
        if let Err(violation) = ringmq_engine::sim::run(seed) {
            eprintln!("{violation}");
            std::process::exit(1);
        }
    }
}
"""


def prepare(scratch):
    shutil.rmtree(scratch / "tree", ignore_errors=True)
    for part in ["Cargo.toml", "Cargo.lock", "clippy.toml"]:
        (scratch / "tree").mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / part, scratch / "tree" / part)
    workspace = scratch / "tree/Cargo.toml"
    text = re.sub(r"(?m)^members = .*$", 'members = ["engine"]', workspace.read_text())
    workspace.write_text(re.sub(r"(?m)^default-members = .*\n", "", text))
    shutil.copytree(ROOT / "engine", scratch / "tree/engine")
    runner = scratch / "runner"
    (runner / "src").mkdir(parents=True, exist_ok=True)
    (runner / "Cargo.toml").write_text(MANIFEST)
    (runner / "src/main.rs").write_text(RUNNER)
    shutil.copy2(ROOT / "Cargo.lock", runner / "Cargo.lock")


def build(runner, target):
    env = dict(os.environ, CARGO_TARGET_DIR=str(target), RUSTFLAGS="-Awarnings")
    command = ["cargo", "build", "--release", "--quiet"]
    return subprocess.run(command, cwd=runner, env=env, capture_output=True, text=True)


def simulate(target, seeds):
    # Memory that is given back to the system after every store would take most of the time.
    env = dict(os.environ, MALLOC_MMAP_THRESHOLD_="1073741824", MALLOC_TRIM_THRESHOLD_="1073741824")
    command = [str(target / "release/runner"), str(seeds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    found = [line for line in done.stderr.splitlines() if line.startswith("seed ")]
    return found[0].split(" [Manifest")[0] if done.returncode and found else None


def test(tree, target):
    """The first of the engine's own tests that fails."""
    env = dict(os.environ, CARGO_TARGET_DIR=str(target), RUSTFLAGS="-Awarnings")
    command = ["cargo", "test", "--quiet", "-p", "ringmq-engine", "--features", "sim", "--lib"]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    failed = re.findall(r"(?m)^---- (\S+) stdout ----$", done.stdout)
    return f"no seed, but the test {failed[0]}" if done.returncode and failed else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("/tmp/ringmq-mutations"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    scratch, target = arguments.scratch, arguments.scratch / "target"
    prepare(scratch)
    # What fails without a mutation would notice each of them.
    if (built := build(scratch / "runner", target)).returncode:
        sys.exit("not built without a mutation: " + built.stderr.strip()[-300:])
    if verdict := simulate(target, arguments.seeds) or test(scratch / "tree", target):
        sys.exit(f"fails without a mutation: {verdict}")
    missed = 0
    for name, file, before, after in MUTATIONS:
        if arguments.names and name not in arguments.names:
            continue
        path = scratch / "tree" / SRC / file
        original = path.read_text()
        if not mutate(path, before, after):
            verdict = "NOT FOUND: the text in engine/src/" + file + " has changed"
            missed += 1
        elif (built := build(scratch / "runner", target)).returncode:
            verdict = "NOT BUILT: " + built.stderr.strip()[-300:]
            missed += 1
        else:
            verdict = simulate(target, arguments.seeds) or test(scratch / "tree", target)
            missed += verdict is None
            verdict = verdict or f"SURVIVED {arguments.seeds} seeds and the tests"
        # Written anew, so that the next build notices.
        path.write_text(original)
        print(f"{name}\n    {verdict}", flush=True)
    sys.exit(1 if missed else 0)


main()

//! How long a killed store takes until it serves again, by its length.

use serde_json::json;

use super::Bench;
use super::figures::{Figures, float};
use super::own::{Failure, Load, Own};
use super::table::{Bar, Row, Table};

const RECORD_LEN: usize = 1024;
const QUEUES: usize = 10_000;
/// The longest store, as a multiple of the shortest.
const STEPS: [u64; 3] = [1, 4, 16];

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let dir = bench.fresh("recovery")?;
    let options = Bench::options(256 << 20);
    let mut filled = 0;
    for step in STEPS {
        let bytes = bench.bytes / 4 * step;
        let mut own = Own::open(&dir, &options)?;
        let numbers = own.queues(QUEUES)?;
        let load = Load { record_len: RECORD_LEN, in_flight: 4096, bytes: bytes - filled };
        own.append(&numbers, load, |_| Ok(()))?;
        filled = bytes;
        own.kill();
        let (mut values, mut details) = (Vec::new(), Vec::new());
        for _ in 0..bench.repetitions {
            let clock = Figures::start();
            let mut own = Own::open(&dir, &options)?;
            let opened = clock.elapsed();
            let queue = own.queue(b"queue/17")?;
            let load = Load { record_len: RECORD_LEN, in_flight: 1, bytes: RECORD_LEN as u64 };
            own.append(&[queue], load, |_| Ok(()))?;
            values.push(clock.elapsed());
            details.push(json!({ "opened_s": opened, "store_bytes": bytes }));
            own.kill();
        }
        table.add(Row {
            what: format!("{:.1} GiB, {QUEUES} queues, killed", float(bytes) / 1_073_741_824.0),
            got: "until an append is committed".to_owned(),
            measure: "seconds",
            values,
            bar: Bar::AtMost(1.0),
            details,
        })?;
    }
    Ok(bench.remove(&dir)?)
}

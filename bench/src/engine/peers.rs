//! Other durable logs and stores, with the same records on the same device, as an embedder would
//! choose between them.
//!
//! They are measured as their documentation says to get durable writes: a commit that is answered
//! only once it is on the device, alone and with as many records in one commit as are in flight. Built
//! with the feature `peers` only, since they take longer to build than everything else here.

use super::Bench;
use super::own::Failure;
use super::table::Table;

#[cfg(not(feature = "peers"))]
pub(super) fn run(_bench: &Bench, _table: &mut Table) -> Result<(), Failure> {
    Ok(crate::cli::say("  not built in: build with --features peers")?)
}

#[cfg(feature = "peers")]
pub(super) use with_peers::run;

#[cfg(feature = "peers")]
mod with_peers {
    use std::path::Path;

    use redb::{Database, Durability, TableDefinition};
    use serde_json::json;

    use super::super::figures::Figures;
    use super::super::own::{Load, Own};
    use super::super::table::{Bar, Row};
    use super::{Bench, Failure, Table};
    use crate::measure::median;

    const RECORD_LEN: usize = 1024;
    /// Records of one commit; with one in flight, every record waits for the device.
    const TOGETHER: [usize; 3] = [1, 256, 4096];
    /// Each run ends after this time, however slow it is.
    const SECONDS: f64 = 2.0;

    /// Measures one of them in a folder.
    type Measure = fn(&Path, &mut Runs<'_>) -> Result<(), Failure>;
    /// A log or store under test: appends `together` records in one durable commit.
    type Commit<'a> = Box<dyn FnMut(usize) -> Result<(), Failure> + 'a>;

    pub(in super::super) fn run(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
        for together in TOGETHER {
            let mut engine = Vec::new();
            let peers: [(&str, Measure); 3] =
                [("okaywal", okaywal), ("redb", redb), ("fjall", fjall)];
            let mut found: Vec<(&str, Vec<Figures>)> =
                peers.iter().map(|(name, _)| (*name, Vec::new())).collect();
            for _ in 0..bench.repetitions {
                engine.push(own(bench, together)?);
                for ((_, measure), (_, found)) in peers.iter().zip(&mut found) {
                    let dir = bench.fresh("peer")?;
                    measure(&dir, &mut Runs { together, bytes_max: bench.bytes, found })?;
                    bench.remove(&dir)?;
                }
            }
            let base = median(engine.iter().map(Figures::rate));
            add(table, "ringmq-engine", together, base, &engine)?;
            for (name, found) in &found {
                add(table, name, together, base, found)?;
            }
        }
        Ok(())
    }

    fn add(
        table: &mut Table,
        name: &str,
        together: usize,
        base: f64,
        all: &[Figures],
    ) -> Result<(), Failure> {
        Ok(table.add(Row {
            what: format!("{name}, 1 KiB, {together} in flight"),
            got: format!(
                "{:.0}/s, {:.2} us CPU",
                median(all.iter().map(Figures::rate)),
                median(all.iter().map(Figures::cpu_us))
            ),
            measure: "rate / ringmq-engine",
            values: all.iter().map(|figures| figures.rate() / base).collect(),
            bar: Bar::None,
            details: all.iter().map(|figures| json!({ "figures": figures.json() })).collect(),
        })?)
    }

    fn own(bench: &Bench, together: usize) -> Result<Figures, Failure> {
        let dir = bench.fresh("own")?;
        let mut own = Own::open(&dir, &Bench::options(1 << 30))?;
        let queues = own.queues(1)?;
        own.prepare()?;
        let bytes = if together == 1 { 4 << 20 } else { bench.bytes };
        let load = Load { record_len: RECORD_LEN, in_flight: together, bytes };
        let figures = own.append(&queues, load, |_| Ok(()))?.figures;
        drop(own);
        bench.remove(&dir)?;
        Ok(figures)
    }

    struct Runs<'a> {
        together: usize,
        bytes_max: u64,
        found: &'a mut Vec<Figures>,
    }

    impl Runs<'_> {
        /// Commits until time or bytes are used up.
        fn measure(&mut self, mut commit: Commit<'_>) -> Result<(), Failure> {
            let mut figures = Figures::start();
            let (mut count, step) = (0, self.together as u64);
            while figures.elapsed() < SECONDS && count * (RECORD_LEN as u64) < self.bytes_max {
                let lap = figures.lap();
                commit(self.together)?;
                figures.took(lap, step);
                count += step;
            }
            figures.end(count, count * RECORD_LEN as u64);
            self.found.push(figures);
            Ok(())
        }
    }

    fn okaywal(dir: &Path, runs: &mut Runs<'_>) -> Result<(), Failure> {
        // Longer segments than the default of 1 MiB, which would end every few commits.
        let log = okaywal::Configuration::default_for(dir)
            .preallocate_bytes(64 << 20)
            .checkpoint_after_bytes(48 << 20)
            .open(okaywal::LogVoid)?;
        let record = [0x5A; RECORD_LEN];
        runs.measure(Box::new(|together| {
            let mut entry = log.begin_entry()?;
            for _ in 0..together {
                entry.write_chunk(&record)?;
            }
            entry.commit()?;
            Ok(())
        }))?;
        Ok(log.shutdown()?)
    }

    fn redb(dir: &Path, runs: &mut Runs<'_>) -> Result<(), Failure> {
        const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
        let store = Database::create(dir.join("redb"))?;
        let record = [0x5A; RECORD_LEN];
        let mut next = 0;
        runs.measure(Box::new(|together| {
            let mut transaction = store.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            let mut log = transaction.open_table(LOG)?;
            for _ in 0..together {
                log.insert(next, &record[..])?;
                next += 1;
            }
            drop(log);
            Ok(transaction.commit()?)
        }))
    }

    fn fjall(dir: &Path, runs: &mut Runs<'_>) -> Result<(), Failure> {
        let store = fjall::Database::builder(dir).open()?;
        let log = store.keyspace("log", fjall::KeyspaceCreateOptions::default)?;
        let record = [0x5A; RECORD_LEN];
        let mut next = 0_u64;
        runs.measure(Box::new(|together| {
            let mut batch = store.batch();
            for _ in 0..together {
                batch.insert(&log, next.to_be_bytes(), record);
                next += 1;
            }
            batch.commit()?;
            Ok(store.persist(fjall::PersistMode::SyncData)?)
        }))
    }
}

use clap::Parser;

use super::*;

fn cli(arguments: &[&str]) -> Cli {
    Cli::try_parse_from([&["ringmq"], arguments].concat()).expect("valid arguments")
}

fn load(arguments: &[&str], file: &str) -> Result<Config, ConfigError> {
    Config::build(&cli(arguments), Properties::parse("broker.conf", file))
}

fn broker_of(arguments: &[&str], file: &str) -> BrokerConfig {
    load(arguments, file).unwrap().broker.unwrap()
}

#[track_caller]
fn check_refused(arguments: &[&str], file: &str, names: &str) {
    let line = load(arguments, file).unwrap_err().to_string();
    assert!(line.contains(names), "{line}");
    assert!(!line.contains('\n'), "one line: {line}");
}

#[test]
fn without_arguments_name_server_and_broker_run_on_loopback() {
    let config = load(&[], "").unwrap();
    let broker = config.broker.unwrap();
    assert_eq!(broker.listen, "127.0.0.1:10911".parse().unwrap());
    assert_eq!(broker.advertise, "127.0.0.1:0".parse().unwrap());
    assert_eq!(broker.data, PathBuf::from("ringmq-data"));
    assert_eq!(broker.namesrv_addrs, [""; 0]);
    assert_eq!(broker.limits, Limits::default());
    assert_eq!(config.namesrv.unwrap().listen, "127.0.0.1:9876".parse().unwrap());
    assert_eq!(config.notes, [""; 0]);
}

#[test]
fn flags_mean_the_same_before_and_after_the_command() {
    for arguments in [
        &["--data", "/d", "standalone"][..],
        &["standalone", "--data", "/d"],
        &["--data", "/d"],
        &["broker", "--data", "/d"],
        &["broker", "-n", "a:1;b:2", "--data", "/d"],
    ] {
        assert_eq!(broker_of(arguments, "").data, PathBuf::from("/d"), "{arguments:?}");
    }
}

#[test]
fn a_flag_beats_the_file_and_the_file_beats_the_default() {
    let file = "listenPort=20911\nstorePathRootDir = /from/file\nnamesrvAddr: x:1; y:2 ;";
    let broker = broker_of(&["broker"], file);
    assert_eq!(broker.listen.port(), 20911);
    assert_eq!(broker.data, PathBuf::from("/from/file"));
    assert_eq!(broker.namesrv_addrs, ["x:1", "y:2"]);
    let broker =
        broker_of(&["broker", "-n", "z:3", "--listen", "127.0.0.1:1", "--data", "/f"], file);
    assert_eq!(broker.listen.port(), 1);
    assert_eq!(broker.data, PathBuf::from("/f"));
    assert_eq!(broker.namesrv_addrs, ["z:3"]);
}

#[test]
fn a_usual_broker_conf_is_read_without_remarks() {
    let file = "\
# a comment
! another
brokerClusterName=c
brokerName = broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=SYNC_FLUSH
messageDelayLevel=1s 5s \\
  10s
defaultTopicQueueNums=4
autoCreateTopicEnable=false
maxMessageSize=65536
";
    let config = load(&["broker", "-n", "127.0.0.1:9876"], file).unwrap();
    assert_eq!(config.notes, [""; 0]);
    let broker = config.broker.unwrap();
    assert_eq!(broker.message_age, Duration::from_secs(48 * 3600));
    assert_eq!((broker.cluster.as_str(), broker.name.as_str()), ("c", "broker-a"));
    assert_eq!((broker.default_topic_queue_nums, broker.auto_create_topic), (4, false));
    assert_eq!(broker.message_len_max, 65536);
}

#[test]
fn a_broker_that_nobody_could_find_is_named_and_a_bad_name_server_refused() {
    let config = load(&["broker"], "").unwrap();
    assert!(config.notes[0].contains("no name server"), "{:?}", config.notes);
    for bad in ["foo", "foo bar:1", ":9876", "host:port", "a:1;b"] {
        check_refused(&["broker", "-n", bad], "", "name server");
        check_refused(&["broker"], &format!("namesrvAddr={bad}"), "name server");
    }
}

#[test]
fn unknown_keys_get_one_line_each() {
    let config = load(&["broker", "-n", "127.0.0.1:9876"], "brokerNmae=x\nsurprise=1").unwrap();
    assert_eq!(config.notes.len(), 2);
    assert_eq!(config.notes[0], "broker.conf:1: unknown key brokerNmae");
    assert_eq!(config.notes[1], "broker.conf:2: unknown key surprise");
}

#[test]
fn lines_are_read_as_java_reads_properties() {
    let file = "listenPort 21955\nbrokerName\t:  b\ngarbage line\nbrokerClusterName = c\\";
    let config = load(&["broker", "-n", "127.0.0.1:9876"], file).unwrap();
    let broker = config.broker.unwrap();
    assert_eq!((broker.listen.port(), &*broker.name, &*broker.cluster), (21955, "b", "c"));
    assert_eq!(config.notes, ["broker.conf:3: unknown key garbage"]);
}

#[test]
fn clients_are_not_told_an_address_that_reaches_nobody() {
    check_refused(&["--listen", "[::1]:1"], "", "--advertise");
    check_refused(&["broker"], "bindAddress=::1", "--advertise");
    let broker = broker_of(&["--listen", "[::1]:1", "--advertise", "127.0.0.1"], "");
    assert_eq!(broker.advertise, "127.0.0.1:0".parse().unwrap());
}

#[test]
fn the_flag_says_what_an_acknowledgement_means_and_the_file_what_it_leaves_open() {
    let buffered = &["--ack", "buffered"][..];
    let durable = &["--ack", "durable"][..];
    let none = &[][..];
    for (flag, file, ack, note) in [
        (none, "", None, ""),
        (none, "flushDiskType=SYNC_FLUSH", Some(Ack::Durable), ""),
        (none, "flushDiskType=ASYNC_FLUSH", None, "acknowledges after a flush"),
        (buffered, "", Some(Ack::Buffered), ""),
        (buffered, "flushDiskType=ASYNC_FLUSH", Some(Ack::Buffered), ""),
        (buffered, "flushDiskType=SYNC_FLUSH", Some(Ack::Buffered), "gives way"),
        (durable, "flushDiskType=ASYNC_FLUSH", Some(Ack::Durable), ""),
    ] {
        let arguments = [&["broker", "-n", "127.0.0.1:9876"], flag].concat();
        let config = load(&arguments, file).unwrap();
        assert_eq!(config.broker.unwrap().ack, ack, "{flag:?} {file}");
        assert_eq!(config.notes.len(), usize::from(!note.is_empty()), "{:?}", config.notes);
        assert!(config.notes.iter().all(|said| said.contains(note)), "{:?}", config.notes);
    }
    check_refused(&["broker"], "flushDiskType=SOON", "flushDiskType");
}

#[test]
fn what_cannot_be_given_is_refused() {
    check_refused(&["broker"], "aclEnable=true", "aclEnable");
    check_refused(&["broker"], "brokerRole=SLAVE\nbrokerId=1", "brokerRole=SLAVE");
    check_refused(&["broker"], "brokerId=1", "brokerId=1");
    check_refused(&["broker"], "enableDLegerCommitLog=true", "enableDLegerCommitLog");
}

#[test]
fn a_bad_value_is_refused_with_file_line_and_what_the_key_takes() {
    for (line, takes) in [
        ("listenPort=70000", "0 to 65535"),
        ("listenPort=abc", "0 to 65535"),
        ("bindAddress=here", "an IP address"),
        ("longPollingEnable=maybe", "true or false"),
        ("handOverEntries=0", "1 to 65536"),
        ("shardTailMemory=4096", "16777216 to 1099511627776"),
        ("defaultTopicQueueNums=0", "1 to 65536"),
        ("maxMessageSize=99999999999999999999", "1 to 8388608"),
        ("shards=0", "1 to 1024"),
        ("threads=1025", "1 to 1024"),
        ("blockSize=1000", "auto, 512 or 4096"),
        ("segmentSize=1", "1048576 to 2147483648"),
        ("registerNameServerPeriod=soon", "0 to 86400000"),
        ("brokerName=../a", "1 to 255 bytes without slashes"),
        ("brokerClusterName=a/b", "1 to 255 bytes without slashes"),
        ("regionId=a b", "letters, digits, `-`, `_` and `.`"),
        ("brokerIP1=127.0.0.1:port", "HOST or HOST:PORT"),
    ] {
        // The error names where the value begins, and the last of two is the one that counts.
        let file = format!("# a comment\n\nstorePathRootDir=/a\\\n  /b\n{line}\n");
        check_refused(&["broker"], &file, &format!("broker.conf:5: {line}: takes {takes}"));
        let (key, value) = line.split_once('=').unwrap();
        let file = format!("{key}=x\n{key} : \\\n {value}");
        check_refused(&["broker"], &file, &format!("broker.conf:2: {line}: takes {takes}"));
    }
    check_refused(&["broker"], "a=b\naclEnable=true", "broker.conf:2: aclEnable=true");
    check_refused(&["broker"], "a=b\nbrokerId=1", "broker.conf:2: brokerRole=");
    check_refused(&["broker"], "a=b\nnamesrvAddr=x", "broker.conf:2: name server `x`");
}

#[test]
fn block_sizes_are_written_as_with_the_flag() {
    assert_eq!(broker_of(&["broker"], "blockSize=4096").block_len, Some(4096));
    assert_eq!(broker_of(&["broker"], "blockSize=auto").block_len, None);
    assert_eq!(broker_of(&["--block-size", "512"], "blockSize=4096").block_len, Some(512));
}

#[test]
fn the_advertised_address_is_an_ipv4_address() {
    let advertised = |arguments: &[&str], file: &str| broker_of(arguments, file).advertise;
    assert_eq!(advertised(&["--advertise", "10.1.2.3:99"], ""), "10.1.2.3:99".parse().unwrap());
    assert_eq!(advertised(&["--advertise", "10.1.2.3"], ""), "10.1.2.3:0".parse().unwrap());
    assert_eq!(advertised(&["broker"], "brokerIP1=10.1.2.4"), "10.1.2.4:0".parse().unwrap());
    check_refused(&["--advertise", "host:port"], "", "--advertise host:port");
}

#[test]
fn a_broker_for_others_does_not_hide_on_loopback() {
    let broker = broker_of(&["broker"], "brokerIP1=10.1.2.4\nlistenPort=10911");
    assert_eq!(broker.listen, "0.0.0.0:10911".parse().unwrap());
    let broker = broker_of(&["broker"], "brokerIP1=10.1.2.4\nbindAddress=10.1.2.4");
    assert_eq!(broker.listen, "10.1.2.4:10911".parse().unwrap());
}

#[test]
fn the_first_local_address_is_found_in_the_routing_table() {
    let table = "\
Local:
  +-- 0.0.0.0/0 3 0 5
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 172.17.0.0
           /16 link UNICAST
        |-- 172.17.0.5
           /32 host LOCAL
";
    assert_eq!(local_v4(table), Some(Ipv4Addr::new(172, 17, 0, 5)));
    assert_eq!(local_v4("Local:\n |-- 127.0.0.1\n /32 host LOCAL\n"), None);
}

#[test]
fn handover_rings_go_down_to_two_entries() {
    assert_eq!(broker_of(&["broker"], "handOverEntries=2").limits.link_entries, 2);
}

#[test]
fn memory_budgets_are_read_from_the_file() {
    let file = "shardTailMemory=33554432\nreceiveBudget=67108864\noutputBudget=67108864";
    let broker = broker_of(&["broker"], file);
    assert_eq!(broker.memory, ShardMemory { tail: Some(32 << 20), large: None, read: None });
    assert_eq!((broker.limits.receive_bytes, broker.limits.output_bytes), (64 << 20, 64 << 20));
}

#[test]
fn a_disk_budget_is_bytes_or_a_part_of_the_file_system() {
    use ringmq_engine::DiskBudget as Engine;
    let budget = |flags: &[&str], file: &str| {
        load(flags, file).unwrap().broker.unwrap().disk_budget.map(|budget| budget.0)
    };
    assert_eq!(budget(&["broker"], ""), None);
    assert_eq!(budget(&["broker"], "diskBudget=1000000"), Some(Engine::Bytes(1_000_000)));
    let flag = ["broker", "--disk-budget", "30%"];
    assert_eq!(budget(&flag, "diskBudget=1000000"), Some(Engine::Percent(30)));
    for wrong in ["0%", "101%", "-1", "many", "%"] {
        assert!(load(&["broker"], &format!("diskBudget={wrong}")).is_err(), "{wrong}");
    }
}

//! A RocketMQ `broker.conf`: Java properties.
//!
//! Every key that is asked for counts as known. What is left over is either in the table of keys that
//! mean nothing here, each with the reason, and is passed over silently; or it is unknown, and gets
//! one line each.
//!
//! Source of the keys: `BrokerConfig`, `MessageStoreConfig`, `NettyServerConfig`, `NettyClientConfig`
//! of RocketMQ 4.9.8 and 5.3.3.

use std::{collections::BTreeMap, fmt::Display, path::Path, str::FromStr};

use super::{ConfigError, invalid};

/// Keys of RocketMQ that have no meaning here, by reason.
pub const WITHOUT_MEANING: &[(&str, &[&str])] = &[
    (
        "there are no thread pools with queues; a connection is served by its data thread",
        &[
            "sendMessageThreadPoolNums",
            "putMessageFutureThreadPoolNums",
            "pullMessageThreadPoolNums",
            "litePullMessageThreadPoolNums",
            "ackMessageThreadPoolNums",
            "processReplyMessageThreadPoolNums",
            "queryMessageThreadPoolNums",
            "adminBrokerThreadPoolNums",
            "clientManageThreadPoolNums",
            "consumerManageThreadPoolNums",
            "loadBalanceProcessorThreadPoolNums",
            "heartbeatThreadPoolNums",
            "endTransactionThreadPoolNums",
            "recoverThreadPoolNums",
            "sendThreadPoolQueueCapacity",
            "putThreadPoolQueueCapacity",
            "pullThreadPoolQueueCapacity",
            "litePullThreadPoolQueueCapacity",
            "ackThreadPoolQueueCapacity",
            "replyThreadPoolQueueCapacity",
            "queryThreadPoolQueueCapacity",
            "clientManagerThreadPoolQueueCapacity",
            "consumerManagerThreadPoolQueueCapacity",
            "heartbeatThreadPoolQueueCapacity",
            "endTransactionPoolQueueCapacity",
            "adminBrokerThreadPoolQueueCapacity",
            "loadBalanceThreadPoolQueueCapacity",
            "brokerFastFailureEnable",
            "waitTimeMillsInSendQueue",
            "waitTimeMillsInPullQueue",
            "waitTimeMillsInLitePullQueue",
            "waitTimeMillsInHeartbeatQueue",
            "waitTimeMillsInTransactionQueue",
            "waitTimeMillsInAckQueue",
            "serverWorkerThreads",
            "serverCallbackExecutorThreads",
            "serverSelectorThreads",
            "serverOnewaySemaphoreValue",
            "serverAsyncSemaphoreValue",
            "clientWorkerThreads",
            "clientCallbackExecutorThreads",
            "clientOnewaySemaphoreValue",
            "clientAsyncSemaphoreValue",
            "useEpollNativeSelector",
        ],
    ),
    (
        "there are no mapped files, page cache or separate flushes; the log has one format and flushes itself",
        &[
            "storePathCommitLog",
            "storePathDLedgerCommitLog",
            "storePathConsumeQueue",
            "storePathIndex",
            "storeCheckpoint",
            "abortFile",
            "mappedFileSizeCommitLog",
            "mappedFileSizeConsumeQueue",
            "enableConsumeQueueExt",
            "mappedFileSizeConsumeQueueExt",
            "bitMapLengthConsumeQueueExt",
            "flushIntervalCommitLog",
            "commitIntervalCommitLog",
            "useReentrantLockWhenPutMessage",
            "flushCommitLogTimed",
            "flushIntervalConsumeQueue",
            "flushCommitLogLeastPages",
            "commitCommitLogLeastPages",
            "flushLeastPagesWhenWarmMapedFile",
            "flushConsumeQueueLeastPages",
            "flushCommitLogThoroughInterval",
            "commitCommitLogThoroughInterval",
            "flushConsumeQueueThoroughInterval",
            "warmMapedFileEnable",
            "osPageCacheBusyTimeOutMills",
            "accessMessageInMemoryMaxRatio",
            "maxTransferBytesOnMessageInDisk",
            "maxTransferCountOnMessageInDisk",
            "transientStorePoolEnable",
            "transientStorePoolSize",
            "fastFailIfNoBufferInStorePool",
            "syncFlushTimeout",
            "checkCRCOnRecover",
            "debugLockEnable",
            "diskFallRecorded",
            "maxHashSlotNum",
            "maxIndexNum",
            "messageIndexEnable",
            "messageIndexSafe",
            "putMsgIndexHightWater",
            "maxMsgsNumBatch",
            "defaultQueryMaxNum",
            "transferMsgByHeap",
            "flushConsumerOffsetInterval",
            "flushConsumerOffsetHistoryInterval",
            "flushDelayOffsetInterval",
            "storeType",
        ],
    ),
    (
        "old segments are recycled by age and by the store's byte budget, not at an hour of the day",
        &[
            "deleteWhen",
            "diskMaxUsedSpaceRatio",
            "cleanFileForciblyEnable",
            "cleanResourceInterval",
            "deleteCommitLogFilesInterval",
            "deleteConsumeQueueFilesInterval",
            "destroyMapedFileIntervalForcibly",
            "redeleteHangedFileInterval",
            "diskSpaceWarningLevelRatio",
            "diskSpaceCleanForciblyRatio",
        ],
    ),
    (
        "there is no replication yet, so nothing to tune about it",
        &[
            "brokerIP2",
            "haListenPort",
            "haMasterAddress",
            "haSendHeartbeatInterval",
            "haHousekeepingInterval",
            "haTransferBatchSize",
            "haSlaveFallbehindMax",
            "slaveReadEnable",
            "slaveTimeout",
            "offsetCheckInSlave",
            "duplicationEnable",
            "inSyncReplicas",
            "totalReplicas",
            "minInSyncReplicas",
            "allAckInSyncStateSet",
            "enableControllerMode",
            "enableSlaveActingMaster",
            "dLegerGroup",
            "dLegerPeers",
            "dLegerSelfId",
            "preferredLeaderId",
        ],
    ),
    (
        "delay levels and transactions are not taken yet; sends that need them are answered so",
        &[
            "messageDelayLevel",
            "rejectTransactionMessage",
            "transactionTimeOut",
            "transactionCheckMax",
            "transactionCheckInterval",
            "timerWheelEnable",
            "timerMaxDelaySec",
            "timerPrecisionMs",
        ],
    ),
    (
        "filters other than tags are not taken yet; pulls that need them are answered so",
        &[
            "enablePropertyFilter",
            "enableCalcFilterBitMap",
            "expectConsumerNumUseFilter",
            "maxErrorRateOfBloomFilter",
            "filterDataCleanTimeSpan",
            "filterSupportRetry",
            "filterServerNums",
        ],
    ),
    (
        "it tunes the Java runtime, its network library or its statistics",
        &[
            "rocketmqHome",
            "messageStorePlugIn",
            "serverSocketSndBufSize",
            "serverSocketRcvBufSize",
            "serverSocketBacklog",
            "serverPooledByteBufAllocatorEnable",
            "writeBufferHighWaterMark",
            "writeBufferLowWaterMark",
            "connectTimeoutMillis",
            "channelNotActiveInterval",
            "clientChannelMaxIdleTimeSeconds",
            "clientSocketSndBufSize",
            "clientSocketRcvBufSize",
            "clientPooledByteBufAllocatorEnable",
            "clientCloseSocketIfTimeout",
            "useTLS",
            "highSpeedMode",
            "commercialEnable",
            "commercialTimerCount",
            "commercialTransCount",
            "commercialBigCount",
            "commercialBaseCount",
            "enableDetailStat",
            "autoDeleteUnusedStats",
            "accountStatsEnable",
            "maxDelayTime",
            "registerBrokerTimeoutMills",
            "forceRegister",
            "fetchNamesrvAddrByAddressServer",
            "disableConsumeIfConsumerReadSlowly",
            "consumerFallbehindThreshold",
            "startAcceptSendRequestTimeStamp",
            "rejectPullConsumerEnable",
            "storeReplyMessageEnable",
            "namesrvConfigPath",
        ],
    ),
];

/// The keys of one file, taken out one by one.
#[derive(Clone, Debug, Default)]
pub struct Properties {
    /// How errors name the file.
    file: String,
    left: BTreeMap<String, Entry>,
    notes: Vec<String>,
}

/// The value of a key, and the line that it begins on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    line: usize,
    /// Never empty.
    pub text: String,
}

/// Adds the entry of a whole line, if there is one on it.
fn add(left: &mut BTreeMap<String, Entry>, whole: &str, line: usize) {
    let whole = whole.trim();
    let ends = |c: char| c == '=' || c == ':' || c.is_whitespace();
    let (key, rest) = whole.split_at(whole.find(ends).unwrap_or(whole.len()));
    let rest = rest.trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    if !whole.is_empty() {
        left.insert(key.to_owned(), Entry { line, text: value.trim().to_owned() });
    }
}

impl Properties {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// One line that names the file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| invalid(format!("{}: cannot be read ({error})", path.display())))?;
        Ok(Self::parse(path.display().to_string(), &text))
    }

    /// Parses `key=value`, `key: value` and `key value` lines; `#` and `!` begin a comment, a backslash
    /// at the end continues. The last of several lines with one key counts.
    pub fn parse(file: impl Into<String>, text: &str) -> Self {
        let mut left = BTreeMap::new();
        let (mut whole, mut first) = (String::new(), 1);
        for (number, raw) in (1..).zip(text.lines()) {
            let raw = raw.trim();
            if whole.is_empty() {
                if raw.starts_with('#') || raw.starts_with('!') {
                    continue;
                }
                first = number;
            }
            if let Some(start) = raw.strip_suffix('\\') {
                whole.push_str(start);
                continue;
            }
            whole.push_str(raw);
            add(&mut left, &whole, first);
            whole.clear();
        }
        // The last line may ask for one more.
        add(&mut left, &whole, first);
        Self { file: file.into(), left, notes: Vec::new() }
    }

    /// Takes a key with its place; an empty value counts as none.
    pub fn entry(&mut self, key: &str) -> Option<Entry> {
        self.left.remove(key).filter(|entry| !entry.text.is_empty())
    }

    /// Takes a key; an empty value counts as none.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.entry(key).map(|entry| entry.text)
    }

    /// Looks at a key without taking it.
    pub fn peek(&self, key: &str) -> Option<&str> {
        self.left.get(key).map(|entry| entry.text.as_str())
    }

    /// Where a key stands, as the start of a line for people; nothing for a key that is not there.
    pub fn place(&self, key: &str) -> String {
        let place = |entry: &Entry| format!("{}:{}: ", self.file, entry.line);
        self.left.get(key).map(place).unwrap_or_default()
    }

    /// The error of a value that a key does not take: file, line, key, value, and what it takes.
    pub fn wrong(&self, key: &str, entry: &Entry, takes: impl Display) -> ConfigError {
        let Entry { line, text } = entry;
        invalid(format!("{}:{line}: {key}={text}: takes {takes}", self.file))
    }

    /// Takes a key that has no default. `takes` says what values there are.
    ///
    /// # Errors
    ///
    /// One line, if the value is not of this type.
    pub fn optional<T: FromStr>(
        &mut self,
        key: &str,
        takes: &str,
    ) -> Result<Option<T>, ConfigError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.wrong(key, &entry, takes)),
        }
    }

    /// Takes a number between two bounds, both allowed, that has no default.
    ///
    /// # Errors
    ///
    /// One line that names the bounds.
    pub fn within<T: FromStr + PartialOrd + Display>(
        &mut self,
        key: &str,
        min: T,
        max: T,
    ) -> Result<Option<T>, ConfigError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.text.parse() {
            Ok(value) if min <= value && value <= max => Ok(Some(value)),
            _ => Err(self.wrong(key, &entry, format_args!("{min} to {max}"))),
        }
    }

    /// Takes a number between two bounds, both allowed.
    ///
    /// # Errors
    ///
    /// One line that names the bounds.
    pub fn ranged<T: FromStr + PartialOrd + Display>(
        &mut self,
        key: &str,
        usual: T,
        min: T,
        max: T,
    ) -> Result<T, ConfigError> {
        Ok(self.within(key, min, max)?.unwrap_or(usual))
    }

    /// Takes a switch. Like Java, only `true` is true; other text than `false` is an error here.
    ///
    /// # Errors
    ///
    /// One line, if it is neither.
    pub fn flag(&mut self, key: &str, usual: bool) -> Result<bool, ConfigError> {
        match self.entry(key) {
            None => Ok(usual),
            Some(entry) if entry.text.eq_ignore_ascii_case("true") => Ok(true),
            Some(entry) if entry.text.eq_ignore_ascii_case("false") => Ok(false),
            Some(entry) => Err(self.wrong(key, &entry, "true or false")),
        }
    }

    /// Adds a remark for the operator.
    pub fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// The remarks, and one for each key that nobody knows.
    pub fn notes(self) -> Vec<String> {
        let known = |key: &str| WITHOUT_MEANING.iter().any(|(_, keys)| keys.contains(&key));
        let Self { file, left, notes } = self;
        let unknown = left
            .iter()
            .filter(|(key, _)| !known(key))
            .map(|(key, Entry { line, .. })| format!("{file}:{line}: unknown key {key}"));
        notes.into_iter().chain(unknown).collect()
    }
}

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
            "fileReservedTime",
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
    left: BTreeMap<String, String>,
    notes: Vec<String>,
}

impl Properties {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// One line that names the file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let bytes = std::fs::read(path)
            .map_err(|error| invalid(format!("{}: cannot be read ({error})", path.display())))?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Parses `key=value` lines; `#` and `!` begin a comment, a backslash at the end continues.
    pub fn parse(text: &str) -> Self {
        let mut left = BTreeMap::new();
        let mut line = String::new();
        for raw in text.lines() {
            let raw = raw.trim();
            if line.is_empty() && (raw.starts_with('#') || raw.starts_with('!')) {
                continue;
            }
            match raw.strip_suffix('\\') {
                Some(start) => line.push_str(start),
                None => {
                    line.push_str(raw);
                    if let Some((key, value)) = line.split_once(['=', ':']) {
                        left.insert(key.trim().to_owned(), value.trim().to_owned());
                    }
                    line.clear();
                }
            }
        }
        Self { left, notes: Vec::new() }
    }

    /// Takes a key; an empty value counts as none.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.left.remove(key).filter(|value| !value.is_empty())
    }

    /// Looks at a key without taking it.
    pub fn peek(&self, key: &str) -> Option<&str> {
        self.left.get(key).map(String::as_str)
    }

    /// Takes a key that has no default.
    ///
    /// # Errors
    ///
    /// One line, if the value is not of this type.
    pub fn optional<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(invalid(format!("{key}={text}: not a value that this key takes"))),
        }
    }

    /// Takes a number or other plain value.
    ///
    /// # Errors
    ///
    /// One line, if the value is not of this type.
    pub fn number<T: FromStr>(&mut self, key: &str, usual: T) -> Result<T, ConfigError> {
        Ok(self.optional(key)?.unwrap_or(usual))
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
        let value = self.number(key, usual)?;
        if min <= value && value <= max {
            return Ok(value);
        }
        Err(invalid(format!("{key}={value}: takes {min} to {max}")))
    }

    /// Takes a switch. Like Java, only `true` is true; other text than `false` is an error here.
    ///
    /// # Errors
    ///
    /// One line, if it is neither.
    pub fn flag(&mut self, key: &str, usual: bool) -> Result<bool, ConfigError> {
        match self.text(key) {
            None => Ok(usual),
            Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(text) => Err(invalid(format!("{key}={text}: takes true or false"))),
        }
    }

    /// Adds a remark for the operator.
    pub fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// The remarks, and one for each key that nobody knows.
    pub fn notes(self) -> Vec<String> {
        let known = |key: &str| WITHOUT_MEANING.iter().any(|(_, keys)| keys.contains(&key));
        let unknown = self
            .left
            .keys()
            .filter(|key| !known(key))
            .map(|key| format!("unknown key in the configuration file: {key}"));
        self.notes.iter().cloned().chain(unknown).collect()
    }
}

//! Keys in Redis: for groups of many processes.
//!
//! A claim is one step in a script, and its value holds the claim's token, so that a
//! run whose time is over can neither mark nor free what another one has claimed meanwhile: both
//! compare the value in a script. Every call has a time of its own, after which the answer is
//! unknown; a claim whose answer is unknown is freed by its end.

use std::{fmt, time::Duration};

use redis::{
    Client, RedisError as Cause, Script, aio::ConnectionManager, aio::ConnectionManagerConfig,
};
use tokio::time::timeout;

use super::{Claim, Store};

/// What a consumed key holds.
const CONSUMED: &str = "CONSUMED";

/// What the value of a claim begins with.
const CONSUMING: &str = "CONSUMING:";

/// Marks a key, or removes it, if it has the expected value.
const COMPARE_AND_SET: &str = r"
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1";

/// Sets a key that is not there, else gives its value.
const CLAIM: &str = r"
local value = redis.call('GET', KEYS[1])
if value then return value end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ''";

/// Keys in Redis 2.6.12 or newer, or in what speaks its protocol with scripts.
///
/// Redis answers from memory: what it forgets in a crash or by eviction may be consumed again, so
/// give it `appendonly yes` and `maxmemory-policy noeviction` where that matters.
///
/// ```no_run
/// # async fn example() -> Result<(), ringmq_client::idempotent::RedisError> {
/// use ringmq_client::{Delivery, idempotent::{Once, Redis}};
///
/// let store = Redis::connect("redis://127.0.0.1:6379", "MSGDEDUP:charges:").await?;
/// let once = Once::new(|_: Delivery| async {}, store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redis {
    connection: ConnectionManager,
    prefix: String,
    call_timeout: Duration,
}

/// Why Redis cannot say anything.
#[derive(Debug)]
#[non_exhaustive]
pub enum RedisError {
    /// What the connection or the server says.
    Failed(Cause),
    /// No answer in time: whether the command was carried out is not known.
    TimedOut,
}

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(cause) => write!(f, "redis: {cause}"),
            Self::TimedOut => f.write_str("redis does not answer"),
        }
    }
}

impl std::error::Error for RedisError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(cause) => Some(cause),
            Self::TimedOut => None,
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Redis {
    /// Connects to `redis://[user:password@]host:port[/database]`. All keys begin with `prefix`.
    /// A connection that breaks later is made again behind the scenes.
    ///
    /// # Errors
    ///
    /// [`RedisError`], also if there is no Redis now.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), ringmq_client::idempotent::RedisError> {
    /// use ringmq_client::idempotent::Redis;
    ///
    /// let store = Redis::connect("redis://127.0.0.1:6379", "MSGDEDUP:charges:").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: &str, prefix: &str) -> Result<Self, RedisError> {
        let client = Client::open(url).map_err(RedisError::Failed)?;
        let call_timeout = Duration::from_secs(1);
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_response_timeout(Some(call_timeout))
            .set_connection_timeout(Some(call_timeout));
        let connecting = client.get_connection_manager_with_config(config);
        let connection = timeout(call_timeout * 3, connecting).await;
        let connection =
            connection.map_err(|_| RedisError::TimedOut)?.map_err(RedisError::Failed)?;
        Ok(Self { connection, prefix: prefix.into(), call_timeout })
    }

    /// How long a command may take, a new connection included; 1 s unless set.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), ringmq_client::idempotent::RedisError> {
    /// use std::time::Duration;
    /// use ringmq_client::idempotent::Redis;
    ///
    /// let store = Redis::connect("redis://127.0.0.1:6379", "MSGDEDUP:charges:")
    ///     .await?
    ///     .call_timeout(Duration::from_millis(200));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn call_timeout(mut self, time: Duration) -> Self {
        self.call_timeout = time;
        self
    }

    async fn run<T: redis::FromRedisValue>(
        &self,
        script: &str,
        key: &str,
        arguments: &[&str],
    ) -> Result<T, RedisError> {
        let script = Script::new(script);
        let mut invocation = script.prepare_invoke();
        invocation.key(format!("{}{key}", self.prefix));
        for argument in arguments {
            invocation.arg(*argument);
        }
        let mut connection = self.connection.clone();
        let answer = timeout(self.call_timeout, invocation.invoke_async(&mut connection)).await;
        answer.map_err(|_| RedisError::TimedOut)?.map_err(RedisError::Failed)
    }
}

fn millis(time: Duration) -> String {
    // Redis takes no time of 0.
    time.as_millis().max(1).to_string()
}

impl Store for Redis {
    type Error = RedisError;

    async fn claim(&self, key: &str, token: &str, time: Duration) -> Result<Claim, RedisError> {
        let own = format!("{CONSUMING}{token}");
        let value: String = self.run(CLAIM, key, &[&own, &millis(time)]).await?;
        Ok(match value.as_str() {
            "" => Claim::Granted,
            CONSUMED => Claim::Consumed,
            _ => Claim::Held,
        })
    }

    async fn finish(&self, key: &str, token: &str, time: Duration) -> Result<bool, RedisError> {
        let own = format!("{CONSUMING}{token}");
        let arguments = [own.as_str(), CONSUMED, &millis(time)];
        self.run::<i64>(COMPARE_AND_SET, key, &arguments).await.map(|changed| changed == 1)
    }

    async fn release(&self, key: &str, token: &str) -> Result<bool, RedisError> {
        let own = format!("{CONSUMING}{token}");
        let arguments = [own.as_str(), "", "0"];
        self.run::<i64>(COMPARE_AND_SET, key, &arguments).await.map(|changed| changed == 1)
    }
}

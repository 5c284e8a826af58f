//! Transactions: requests 37 and 39.

use alloc::borrow::Cow;

use super::header;

header! {
    /// END_TRANSACTION (37), normally oneway. The command's remark may carry the local error.
    ///
    /// Source: Apache RocketMQ 5.3.3, `EndTransactionRequestHeader`.
    EndTransactionRequest<'a> {
        /// Must equal property `PGROUP` of the half message.
        producer_group: Cow<'a, str>, b"producerGroup";
        /// The half message's queue offset.
        tran_state_table_offset: i64, b"tranStateTableOffset";
        /// The half message's position in the log, in bytes.
        commit_log_offset: i64, b"commitLogOffset";
        /// 0 unknown, 8 commit, 12 rollback.
        commit_or_rollback: i32, b"commitOrRollback";
        /// Whether this answers a check (39).
        from_transaction_check: bool, b"fromTransactionCheck" = false;
        /// The message's unique id; brokers do without.
        msg_id: Option<Cow<'a, str>>, b"msgId";
        /// The same, if the client knows it.
        transaction_id: Option<Cow<'a, str>>, b"transactionId";
        /// 5.x: the message's topic.
        topic: Option<Cow<'a, str>>, b"topic";
        /// The broker that the client believes to talk to.
        broker_name: Option<Cow<'a, str>>, b"bname";
    }
}

header! {
    /// CHECK_TRANSACTION_STATE (39), broker to client, oneway; the body is the half message.
    ///
    /// Source: Apache RocketMQ 5.3.3, `CheckTransactionStateRequestHeader`.
    CheckTransactionRequest<'a> {
        /// 5.x: the half topic.
        topic: Option<Cow<'a, str>>, b"topic";
        /// The half message's queue offset.
        tran_state_table_offset: i64, b"tranStateTableOffset";
        /// The half message's position in the log, in bytes.
        commit_log_offset: i64, b"commitLogOffset";
        /// The message's unique id.
        msg_id: Option<Cow<'a, str>>, b"msgId";
        /// The same.
        transaction_id: Option<Cow<'a, str>>, b"transactionId";
        /// Offset message id of the half message.
        offset_msg_id: Option<Cow<'a, str>>, b"offsetMsgId";
        /// The broker's name.
        broker_name: Option<Cow<'a, str>>, b"bname";
    }
}

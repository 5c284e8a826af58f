//! Asking a broker whether it takes a subscription.

use ringmq_protocol::{
    body::{self, CheckClientConfig},
    codes::request,
};

use crate::{Error, client::Shared, subscription::Subscription};

impl Shared {
    /// Asks one broker of the topic whether it takes an expression.
    ///
    /// # Errors
    ///
    /// What the broker says, above all that the expression is none or that it filters by tags only;
    /// as [`Shared::route`].
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `MQClientInstance.checkClientInBroker`.
    pub(crate) async fn check_subscription(
        &self,
        group: &str,
        topic: &str,
        subscription: &Subscription,
    ) -> Result<(), Error> {
        let deadline = self.deadline();
        let route = self.route(topic, deadline).await?;
        let Some((addr, _)) = route.addrs().next() else {
            return Err(Error::NoRoute { topic: topic.into() });
        };
        let check = CheckClientConfig {
            client_id: self.client_id.clone(),
            group: group.into(),
            namespace: None,
            subscription_data: subscription.data(topic),
        };
        let body = body::encode(&check).into();
        let request = self.remoting.request(request::CHECK_CLIENT_CONFIG, |_| {}, body)?;
        self.remoting.call_ok(addr, request, deadline).await.map(drop)
    }
}

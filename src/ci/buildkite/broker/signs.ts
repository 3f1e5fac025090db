/** What the broker learns of the agent inside from its calls. A job has its tokens too, so no sign is proof of anything. */

/**
 * `life`: it sent a heartbeat. `state`: it asked whether its job is still wanted, and was told, or nobody can be at the moment.
 * `result`: it said how its job ended, which the service may have heard or not. What is refused is a sign of nothing.
 */
export type Sign = 'life' | 'state' | 'result';

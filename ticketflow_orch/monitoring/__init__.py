"""How the back office is doing: one snapshot, judged by health and shown as metrics; what is kept, and for how long.

Read-only but for `retention` and `passed_alerts`. Alerts themselves belong to `outbox`, what people read about money to
`reports`, invariants to `auditing`. Import from the modules.
"""

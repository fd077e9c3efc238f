-- name: next_try
-- An expression: when an event that is PENDING again is tried next. `mine` says of its attempt whether it `counts`, met
-- a receiver that had too much (`throttled`), and after how many seconds the receiver wants the next one (`wish`).
CASE
    WHEN mine.throttled THEN clock_timestamp() + make_interval(secs => random() * least(
        %(longest_moment)s::float, %(base)s::float * power(2, least(attempts - 1, 6))))
    WHEN NOT mine.counts THEN available_at
    ELSE clock_timestamp() + make_interval(secs => greatest(
        random() * least(%(cap)s::float,
            %(base)s::float * power(2, least(attempts - attempts_forgiven - 1, 30))),
        CASE WHEN mine.wish IS NOT NULL
            THEN least(mine.wish, %(longest_wish)s::float) + random() * %(base)s::float END))
END;

-- name: note
-- Keep what a query finds wrong with rows of one file: line, position, column, value and reason.
INSERT INTO found_problem
SELECT %(kind)s::integer, line, position, %(file)s::text, "column", value, reason FROM ({query}) AS found;


-- name: summary
-- How many problems there are of each kind. What a reason says of one row alone comes after a comma or a colon, or is
-- the number of a line.
SELECT file, "column",
    regexp_replace(regexp_replace(reason, '[,:] .*$', ''), '^stands on line \d+ ', 'stands on an earlier line ')
        AS reason,
    count(*) AS number
FROM found_problem GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

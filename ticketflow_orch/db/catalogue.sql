-- name: relation
-- The tables of this project, but for the one that Alembic keeps.
SELECT pg_class.oid, relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version';


-- name: objects
-- Each table, constraint, index, trigger and function with the digest of its definition, by name, whatever order
-- columns were added in. Whether an id may be given is asked by `order_faults`; what is switched off or not valid is
-- not there, as a foreign key whose own triggers are switched off. Row security and rules would hide or turn what
-- statements mean, a child table would add rows that no guard has seen, and events go in the order of their ids. What
-- runs with its owner's rights needs those of the outbox's owner; and who may execute it could lend them to a table of
-- their own. A dump leaves out brackets of triggers' conditions, so they do not count.
WITH relation AS MATERIALIZED ({relation})
SELECT name, left(encode(sha256(convert_to(definition, 'UTF8')), 'hex'), 12) AS digest FROM (
    SELECT 'table ' || relname AS name, concat_ws(',', relpersistence, relrowsecurity, relhasrules,
            EXISTS (SELECT FROM pg_inherits WHERE inhparent = pg_class.oid), (
            SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull,
                pg_get_expr(adbin, adrelid)), ',' ORDER BY attname COLLATE "C")
            FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped)) AS definition
    FROM relation JOIN pg_class USING (oid, relname)
    UNION ALL
    SELECT 'constraint ' || relname || '.' || conname, pg_get_constraintdef(pg_constraint.oid)
    FROM pg_constraint JOIN relation ON relation.oid = conrelid
    LEFT JOIN pg_index ON indexrelid = conindid AND contype IN ('p', 'u', 'x')
    WHERE contype IN ('c', 'f', 'p', 'u', 'x') AND convalidated AND NOT condeferrable
        AND coalesce(indisvalid AND indisready, true) AND NOT EXISTS (
            SELECT FROM pg_trigger WHERE tgconstraint = pg_constraint.oid AND tgenabled NOT IN ('O', 'A'))
    UNION ALL
    SELECT 'constraint ' || typname || '.' || conname, pg_get_constraintdef(pg_constraint.oid)
    FROM pg_constraint JOIN pg_type ON pg_type.oid = contypid
    WHERE typnamespace = 'public'::regnamespace AND contype = 'c' AND convalidated
    UNION ALL
    SELECT 'index ' || relation.relname || '.' || named.relname, pg_get_indexdef(indexrelid)
    FROM pg_index JOIN relation ON relation.oid = indrelid JOIN pg_class AS named ON named.oid = indexrelid
    WHERE indisvalid AND indisready AND NOT EXISTS (
        SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
    UNION ALL
    SELECT 'trigger ' || relname || '.' || tgname, translate(pg_get_triggerdef(pg_trigger.oid), '()', '')
    FROM pg_trigger JOIN relation ON relation.oid = tgrelid WHERE NOT tgisinternal AND tgenabled IN ('O', 'A')
    UNION ALL
    SELECT 'sequence ' || relname, concat_ws(',', seqtypid::regtype, seqincrement, seqcache, seqcycle)
    FROM pg_class JOIN pg_sequence ON seqrelid = oid
    WHERE relnamespace = 'public'::regnamespace AND relname = 'outbox_event_id_seq'
    UNION ALL
    SELECT 'function ' || CAST(oid::regprocedure AS text), concat_ws(',', prosrc,
        pg_get_function_sqlbody(oid), provolatile, prosecdef, proisstrict, array_to_string(proconfig, ';'),
        prosecdef AND has_function_privilege('public', oid, 'EXECUTE'),
        prosecdef AND NOT pg_has_role(
            proowner, (SELECT relowner FROM pg_class WHERE oid = to_regclass('public.outbox_event')), 'USAGE'))
    FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prokind = 'f'
) AS defined;


-- name: grants
-- What a role was granted on tables, their columns, sequences and functions, by name and in words.
WITH relation AS MATERIALIZED ({relation})
SELECT privilege_type || ' ON ' || relname FROM relation JOIN pg_class USING (oid, relname)
    CROSS JOIN LATERAL aclexplode(relacl) WHERE grantee = to_regrole(%(role)s::text)
UNION ALL
SELECT privilege_type || ' (' || attname || ') ON ' || relname
FROM relation JOIN pg_attribute ON attrelid = relation.oid CROSS JOIN LATERAL aclexplode(attacl)
WHERE grantee = to_regrole(%(role)s::text)
UNION ALL
SELECT privilege_type || ' ON ' || relname FROM pg_class CROSS JOIN LATERAL aclexplode(relacl)
WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace
    AND grantee = to_regrole(%(role)s::text)
UNION ALL
SELECT privilege_type || ' ON ' || CAST(pg_proc.oid::regprocedure AS text)
FROM pg_proc CROSS JOIN LATERAL aclexplode(proacl)
WHERE pronamespace = 'public'::regnamespace AND grantee = to_regrole(%(role)s::text);


-- name: is_set_up
-- Whether a role was granted anything on a table of this project.
WITH relation AS MATERIALIZED ({relation})
SELECT EXISTS (
    SELECT FROM relation JOIN pg_class USING (oid, relname) CROSS JOIN LATERAL aclexplode(relacl)
    WHERE grantee = to_regrole(%(role)s::text));


-- name: lacking
-- Which of the privileges that a role needs it lacks, or the one that asks as one of its members.
SELECT who.name AS who, privilege, of_column, asked.name
FROM unnest(%(privileges)s::text[], %(columns)s::text[], %(names)s::text[])
    WITH ORDINALITY AS asked (privilege, of_column, name, place)
CROSS JOIN (
    SELECT %(role)s::name AS name
    UNION SELECT current_user WHERE pg_has_role(current_user, %(role)s::name, 'MEMBER')
) AS who
WHERE NOT CASE
    WHEN asked.name LIKE '%%(%%' THEN to_regprocedure('public.' || asked.name) IS NULL
        OR has_function_privilege(who.name, to_regprocedure('public.' || asked.name), privilege)
    WHEN to_regclass('public.' || asked.name) IS NULL THEN true
    WHEN of_column IS NOT NULL THEN
        has_column_privilege(who.name, to_regclass('public.' || asked.name), of_column, privilege)
    WHEN asked.name LIKE '%%_seq' THEN
        has_sequence_privilege(who.name, to_regclass('public.' || asked.name), privilege)
    ELSE has_table_privilege(who.name, to_regclass('public.' || asked.name), privilege)
END
ORDER BY who.name, place;


-- name: beyond
-- What a role may do beyond the privileges that it needs, whatever way it came to the role: granted to it, to a role
-- that it is a member of, or to everybody. Which revision the schema is at may be known to all.
WITH relation AS MATERIALIZED (
    SELECT oid, relname::text AS name FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relname = ANY (%(tables)s::text[])
), held (privilege, of_column, name) AS (
    SELECT privilege, NULL::text, name
    FROM relation CROSS JOIN unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'])
        AS privilege
    WHERE has_table_privilege(%(role)s::name, oid, privilege)
    UNION ALL
    SELECT 'SELECT', NULL, name FROM relation
    WHERE name <> 'alembic_version' AND has_table_privilege(%(role)s::name, oid, 'SELECT')
    UNION ALL
    SELECT privilege, attname::text, name
    FROM relation JOIN pg_attribute ON attrelid = oid AND attnum > 0 AND NOT attisdropped
    CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) AS privilege
    WHERE has_column_privilege(%(role)s::name, oid, attnum, privilege)
        AND NOT has_table_privilege(%(role)s::name, oid, privilege)
    UNION ALL
    SELECT 'UPDATE', NULL, relname::text
    FROM relation JOIN pg_depend ON refobjid = relation.oid AND deptype IN ('a', 'i')
    JOIN pg_class ON pg_class.oid = objid
    WHERE CASE relkind WHEN 'S' THEN has_sequence_privilege(%(role)s::name, objid, 'UPDATE') END
    UNION ALL
    SELECT 'EXECUTE', NULL, CAST(oid::regprocedure AS text) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND prosecdef
        AND CAST(oid::regprocedure AS text) = ANY (%(functions)s::text[])
        AND has_function_privilege(%(role)s::name, oid, 'EXECUTE')
)
SELECT %(role)s::text AS who, privilege, of_column, name FROM held
WHERE NOT EXISTS (
    SELECT FROM unnest(%(privileges)s::text[], %(columns)s::text[], %(names)s::text[])
        AS needed (privilege, of_column, name)
    WHERE needed.privilege = held.privilege AND needed.name = held.name
        AND needed.of_column IS NOT DISTINCT FROM held.of_column)
ORDER BY name, privilege, of_column;


-- name: may
-- What a role may do beside tables; `own` names why nothing is withheld from it: it is, or may become, a superuser or
-- the owner of a table.
SELECT has_database_privilege(%(role)s::name, current_database(), 'TEMPORARY') AS temporary,
    has_schema_privilege(%(role)s::name, 'public', 'CREATE') AS creates,
    has_parameter_privilege(%(role)s::name, 'session_replication_role', 'SET') AS replicates,
    coalesce(
        (SELECT 'a superuser' FROM pg_roles WHERE rolname = %(role)s::name AND rolsuper),
        (SELECT 'the owner of ' || relname FROM pg_class
            WHERE relnamespace = 'public'::regnamespace
                AND relname = ANY (%(tables)s::text[])
                AND pg_has_role(%(role)s::name, relowner, 'MEMBER')
            ORDER BY relname LIMIT 1)) AS own;


-- name: before_rows
-- The triggers that fire before each row (1 + 2 of tgtype) on tables that the application does not write.
SELECT relname::text AS relation, tgname::text AS name
FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE relnamespace = 'public'::regnamespace AND NOT tgisinternal AND tgtype & 3 = 3
    AND tgenabled IN ('O', 'A') AND relname <> ALL (%(others)s::text[])
ORDER BY relname, tgname;

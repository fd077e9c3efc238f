-- name: held
-- Everything that the group roles and everybody hold on this database, its schema and what is in it, as words, and what
-- belongs to whom. Compared before and after, it says what changed.
WITH object (what, owner, acl, kind) AS (
    SELECT 'the database', datdba, datacl, 'd'::"char" FROM pg_database WHERE datname = current_database()
    UNION ALL
    SELECT 'the schema public', nspowner, nspacl, 'n'::"char" FROM pg_namespace WHERE nspname = 'public'
    UNION ALL
    SELECT relname, relowner, relacl, CASE relkind WHEN 'S' THEN 's'::"char" ELSE 'r'::"char" END
    FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
    UNION ALL
    SELECT CAST(oid::regprocedure AS text), proowner, proacl, 'f'::"char"
    FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL
    SELECT typname, typowner, NULL, 'T'::"char" FROM pg_type
    WHERE typnamespace = 'public'::regnamespace AND typtype = 'd'
), held (grantee, privilege, what) AS (
    SELECT grantee, privilege_type, what
    FROM object CROSS JOIN LATERAL aclexplode(coalesce(acl, acldefault(kind, owner)))
    UNION ALL
    SELECT grantee, privilege_type || ' (' || attname || ')', relname
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid CROSS JOIN LATERAL aclexplode(attacl)
    WHERE relnamespace = 'public'::regnamespace
)
SELECT DISTINCT privilege || ' on ' || what || ' to ' || CASE grantee WHEN 0 THEN 'everybody' ELSE rolname END
FROM held LEFT JOIN pg_roles ON pg_roles.oid = grantee
WHERE grantee = 0 OR rolname = ANY (%(roles)s::text[])
UNION
SELECT what || ' belongs to ' || pg_get_userbyid(owner) FROM object WHERE kind NOT IN ('d', 'n')
UNION
SELECT 'membership in ' || granted.rolname || ' to ' || member.rolname
FROM pg_auth_members JOIN pg_roles AS granted ON granted.oid = roleid JOIN pg_roles AS member ON member.oid = member
WHERE granted.rolname = ANY (%(roles)s::text[]) AND member.rolname = current_user;


-- name: absent
-- Which of the roles there are not.
SELECT name FROM unnest(%(roles)s::text[]) WITH ORDINALITY AS asked (name, place)
WHERE to_regrole(name) IS NULL ORDER BY place;


-- name: foreign_owners
-- What of this project belongs to another role than the owner's, with the statement that hands it over. Identity
-- columns' sequences follow their tables.
SELECT kind || ' ' || name AS what, pg_get_userbyid(owner) AS owner, handing FROM (
    SELECT 'table' AS kind, relname::text AS name, relowner AS owner,
        format('ALTER TABLE public.%%I OWNER TO %%I', relname, %(owner)s::text) AS handing
    FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = ANY (%(tables)s::text[])
    UNION ALL
    SELECT 'function', CAST(oid::regprocedure AS text), proowner,
        format('ALTER FUNCTION %%s OWNER TO %%I', oid::regprocedure, %(owner)s::text)
    FROM pg_proc WHERE pronamespace = 'public'::regnamespace
        AND CAST(oid::regprocedure AS text) = ANY (%(functions)s::text[])
    UNION ALL
    SELECT 'domain', typname::text, typowner, format('ALTER DOMAIN public.%%I OWNER TO %%I', typname, %(owner)s::text)
    FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typtype = 'd' AND EXISTS (
        SELECT FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE atttypid = pg_type.oid AND relname = ANY (%(tables)s::text[])
            AND relnamespace = 'public'::regnamespace)
) AS ours
WHERE owner IS DISTINCT FROM to_regrole(%(owner)s::text)::oid
ORDER BY what;


-- name: lacked
-- What the session's role lacks to set the roles up, a line each; nothing for a superuser. What is as it should be
-- already needs no right to change it.
WITH me AS (
    SELECT rolsuper, rolcreaterole, current_database() AS database FROM pg_roles WHERE rolname = current_user
), absent AS (
    SELECT string_agg(name, ', ' ORDER BY place) AS names
    FROM unnest(%(roles)s::text[]) WITH ORDINALITY AS asked (name, place) WHERE to_regrole(name) IS NULL
), there AS (
    SELECT oid, rolname FROM pg_roles WHERE rolname = ANY (%(roles)s::text[])
), foreign_to_me AS (
    SELECT string_agg(name, ', ' ORDER BY name) AS names FROM (
        SELECT relname::text AS name FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
            AND NOT pg_has_role(current_user, relowner, 'USAGE')
        UNION ALL
        SELECT CAST(oid::regprocedure AS text) FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND NOT pg_has_role(current_user, proowner, 'USAGE')
    ) AS others
)
SELECT 'CREATEROLE, to make ' || absent.names AS lacks
FROM me, absent WHERE absent.names IS NOT NULL AND NOT rolsuper AND NOT rolcreaterole
UNION ALL
SELECT 'the ownership of ' || foreign_to_me.names FROM me, foreign_to_me
WHERE foreign_to_me.names IS NOT NULL AND NOT rolsuper
UNION ALL
SELECT 'the ownership of the database ' || database || ', to take TEMPORARY from everybody but the owner' FROM me
WHERE NOT pg_has_role(current_user, (SELECT datdba FROM pg_database WHERE datname = database), 'USAGE') AND (
    has_database_privilege('public', database, 'TEMPORARY')
    OR coalesce(NOT has_database_privilege(to_regrole(%(owner)s::text)::oid, database, 'TEMPORARY'), true))
UNION ALL
SELECT 'the ownership of the schema public, to say who may create and use objects there' FROM me
WHERE NOT pg_has_role(current_user, (SELECT nspowner FROM pg_namespace WHERE nspname = 'public'), 'USAGE') AND (
    has_schema_privilege('public', 'public', 'CREATE') OR EXISTS (
        SELECT FROM unnest(%(roles)s::text[]) AS asked (name)
        WHERE coalesce(NOT has_schema_privilege(to_regrole(name)::oid, 'public', 'USAGE'), true)
            OR (name = %(owner)s::text AND NOT has_schema_privilege(to_regrole(name)::oid, 'public', 'CREATE'))))
UNION ALL
SELECT 'membership in ' || rolname || ', to let it own what migrations made' FROM me, there
WHERE rolname = %(owner)s::text AND NOT rolsuper AND NOT pg_has_role(current_user, oid, 'USAGE')
    AND NOT pg_has_role(current_user, oid, 'MEMBER WITH ADMIN OPTION')
    AND NOT (rolcreaterole AND current_setting('server_version_num')::integer < 160000);


-- name: is_member
-- Whether the session's role has all that the owner's has, without which it could neither hand over nor migrate.
SELECT pg_has_role(current_user, %(owner)s::name, 'USAGE');

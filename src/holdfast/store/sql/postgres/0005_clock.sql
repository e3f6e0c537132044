-- The store's clock, whatever a database's search_path puts in front of pg_catalog: tools that freeze
-- time for tests define a clock_timestamp() of their own.

CREATE OR REPLACE FUNCTION holdfast.clock(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(
    p_now,
    (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint
  )
$$;

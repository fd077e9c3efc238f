-- name: conditions
SELECT {known} FROM delivery_destination;

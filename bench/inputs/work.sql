-- A database of 20,000 rows in memory: inserted, indexed, joined, grouped, changed, deleted. No random, no clock.
CREATE TABLE person(id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO person SELECT i, 'name ' || (i * 7919 % 10007), 'city ' || (i * 31 % 211), i * 17 % 90,
  printf('note %d about %s', i, hex(i * 2654435761)) FROM n;
CREATE INDEX person_by_city ON person(city, age);
CREATE TABLE visit(person INTEGER, city TEXT, day INTEGER);
INSERT INTO visit SELECT id, 'city ' || (id * 13 % 211), id * 29 % 365 FROM person;
CREATE INDEX visit_by_person ON visit(person);
SELECT city, count(*), avg(age), group_concat(name, ',') FROM person GROUP BY city ORDER BY 2 DESC, 1 LIMIT 20;
SELECT p.city, v.city, count(*) FROM person p JOIN visit v ON v.person = p.id WHERE p.age > 40 GROUP BY 1, 2
  ORDER BY 3 DESC, 1, 2 LIMIT 20;
UPDATE person SET note = upper(note) || ' ' || replace(name, 'name', 'called') WHERE age % 3 = 0;
DELETE FROM visit WHERE day % 5 = 0;
SELECT length(json_group_array(json_object('name', name, 'city', city, 'note', note))) FROM person WHERE id < 5000;
SELECT sum(length(note)), max(name) FROM person WHERE note LIKE '%9%' AND city IN (SELECT city FROM visit WHERE day < 30);
SELECT a.name, b.name FROM person a, person b WHERE a.id = b.id * 2 ORDER BY b.note DESC LIMIT 5;

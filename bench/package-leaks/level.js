// leveldown 6.1.0 does not free its copies of the keys of `getMany` (fixed in 6.1.1). A table of 500 answers has a bound.
const fs = require('fs')
const os = require('os')
const path = require('path')
const leveldown = require(path.resolve('node_modules/leveldown'))

const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'level-'))
const db = leveldown(directory)
const end = Date.now() + Number(process.argv[2]) * 1000
const answers = new Map()
const keys = []
for (let i = 0; i < 200; i++) keys.push('a-rather-long-key-of-a-record-number-' + String(i).padStart(40, '0'))

function request(number) {
  if (Date.now() > end) return db.close(() => fs.rmSync(directory, { recursive: true }))
  db.getMany(keys, (error) => {
    if (error) throw error
    answers.set(number % 500, { number, body: 'x'.repeat(200) + number })
    setTimeout(request, 1, number + 1)
  })
}

db.open((error) => {
  if (error) throw error
  db.batch(keys.map((key) => ({ type: 'put', key, value: 'v'.repeat(100) })), () => request(0))
})

// Package rerun holds run.sh, by which make test runs the tests: one that has
// failed is run once more, alone, and told about if it then passes.
//
// It owns what such a second run may excuse, and what not. It never changes a
// test, nor how long one may take. No process of the product runs it.
package rerun

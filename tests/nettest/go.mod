// A module of its own, so that programs that import Verbena do not have golang.org/x/net in the graph of modules.
module github.com/verbena-go/verbena/tests/nettest

go 1.26.0

require github.com/verbena-go/verbena v0.0.0

require (
	github.com/stretchr/testify v1.12.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.62.0
)

replace github.com/verbena-go/verbena => ../..

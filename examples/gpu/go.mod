module github.com/verbena-go/verbena/examples/gpu

go 1.26.0

replace github.com/verbena-go/verbena => ../..

require (
	github.com/ebitengine/purego v0.11.3
	github.com/stretchr/testify v1.12.1
	github.com/verbena-go/verbena v0.0.0-00010101000000-000000000000
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

module load

go 1.23
